"""What is put before every name in Redis, unless `KEY_PREFIX` says something else.

    lock:order:42              LOCATION, or a cache without a KEY_PREFIX
    shop:lock:order:42         a cache with KEY_PREFIX "shop"
    shop:v2:lock:order:42      and with VERSION 2

Caches write `<KEY_PREFIX>:<VERSION>:<key>`, with a number in the middle: no key of a cache is one of a lock.
"""

from __future__ import annotations

from typing import Final

from locking.conf import AliasSettings

LOCKS: Final = "lock:"


def default_key_prefix(settings: AliasSettings) -> str:
    """Return the namespace of an alias: its cache's `KEY_PREFIX` and `VERSION`, and `lock:`."""
    if settings.location is not None:
        return LOCKS
    from django.conf import settings as django_settings

    cache = django_settings.CACHES.get(settings.cache or "default", {})
    prefix, version = str(cache.get("KEY_PREFIX") or ""), cache.get("VERSION", 1)
    parts = [prefix] if prefix else []
    if version != 1:
        parts.append(f"v{version}")
    return "".join(f"{part}:" for part in parts) + LOCKS
