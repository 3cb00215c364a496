"""A small shop like many: ATOMIC_REQUESTS, a Redis cache, and `locking` added to its apps."""

import json
import os

DEBUG = False
SECRET_KEY = "of no use to anyone outside this test, and long enough for Django's own checks"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["locking", "shop"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": json.loads(os.environ["SCRATCH_DATABASE"]) | {"ATOMIC_REQUESTS": True}}
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["SCRATCH_REDIS"]},
}
