"""Django as the measured packages need it: a cache on the private server, and the locks on that cache."""

from __future__ import annotations

import django
from django.conf import settings


def configure_django(url: str) -> None:
    """Set Django up once in this process, for the server at `url`."""
    if settings.configured:
        return
    settings.configure(
        INSTALLED_APPS=["locking"],
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        LOCKING={"default": {"CACHE": "default"}},
        USE_TZ=True,
    )
    django.setup()
