"""Everything that Django needs, and two lines for the stock."""

import json
import os

SECRET_KEY = "of no use outside this example"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["locking", "inventory", "examples.bookshop"]
MIDDLEWARE: list[str] = []
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
ROOT_URLCONF = "examples.bookshop.urls"
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
REDIS = os.environ.get("SHOP_REDIS", "redis://127.0.0.1:6379")
LOCKING = {"default": {"LOCATION": REDIS}}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS}}
INVENTORY = {"default": {"STRATEGY": os.environ.get("SHOP_STRATEGY", "conditional_update")}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
