"""A project that has installed `inventory` and no demo shop."""

from config import embedded

SECRET_KEY = "tests"
USE_TZ = True
REDIS_URL = embedded.redis_url()
DATABASES = {"default": embedded.database()}
DATABASES["default"].setdefault("OPTIONS", {}).update(prepare_threshold=3)
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "locking",
    "inventory",
    "tests.stock.shop",
]
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": embedded.redis_url()}
}
LOCKING = {"default": {"LOCATION": embedded.redis_url()}}
INVENTORY: dict[str, object] = {"default": {}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
