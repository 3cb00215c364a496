"""Settings of a project that has only the wheel."""

import json
import os

SECRET_KEY = "only for these tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "locking"]
DATABASES = {"default": json.loads(os.environ["MATRIX_DATABASE"])}
DATABASES["default"]["TEST"] = {"NAME": f"matrix_{os.getpid()}"}
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["MATRIX_REDIS"]},
    "django": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": os.environ["MATRIX_REDIS"],
    },
}
LOCKING = {
    "default": {"CACHE": "default"},
    "database": {"BACKEND": "locking.backends.database.DatabaseBackend"},
}
ROOT_URLCONF = "cell_settings"
ALLOWED_HOSTS = ["testserver"]
USE_TZ = True
urlpatterns: list[object] = []
