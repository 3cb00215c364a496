"""Names in Redis have a namespace unless the setting says otherwise."""

from typing import Any

import pytest

from locking import get_lock
from locking.core.handler import locks
from tests.backends import MEMORY, REDIS, REDLOCK

CACHE = {"BACKEND": "django_redis.cache.RedisCache"}
SERVERS = [f"redis://127.0.0.1:{port}/0" for port in (1, 2, 3)]


@pytest.fixture(autouse=True)
def bare_names() -> None:
    """Leave the default of users as it is."""


@pytest.mark.parametrize(
    ("cache", "key"),
    [
        ({}, "lock:order:42"),
        ({"KEY_PREFIX": "shop"}, "shop:lock:order:42"),
        ({"KEY_PREFIX": "shop", "VERSION": 2}, "shop:v2:lock:order:42"),
        ({"VERSION": 2}, "v2:lock:order:42"),
    ],
)
def test_a_cache_lends_its_namespace(settings: Any, cache: dict[str, Any], key: str) -> None:
    """Staging and production on one server differ by their caches' KEY_PREFIX, and so do their locks."""
    settings.CACHES = {"default": {**CACHE, "LOCATION": settings.REDIS_URL, **cache}}
    settings.LOCKING = {"default": {"BACKEND": REDIS}}
    assert get_lock("order:42").key == key  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entry", "prefix"),
    [
        ({"BACKEND": REDIS, "LOCATION": SERVERS[0]}, "lock:"),
        ({"BACKEND": REDLOCK, "LOCATION": SERVERS}, "lock:"),
        ({"BACKEND": MEMORY}, ""),
        ({"BACKEND": REDIS, "LOCATION": SERVERS[0], "KEY_PREFIX": None}, "lock:"),
        ({"BACKEND": REDIS, "LOCATION": SERVERS[0], "KEY_PREFIX": ""}, ""),
        ({"BACKEND": REDIS, "LOCATION": SERVERS[0], "KEY_PREFIX": "mine:"}, "mine:"),
    ],
)
def test_what_stands_before_a_name(settings: Any, entry: dict[str, Any], prefix: str) -> None:
    """Without a cache it is `lock:`; what KEY_PREFIX says goes first, also when it is empty."""
    settings.LOCKING = {"default": entry}
    assert locks["default"].key("") == prefix


def test_no_key_of_a_cache_is_a_locks(settings: Any) -> None:
    """A cache's own entry by the name of the lock's key doesn't touch the lock."""
    from django.core.cache import cache

    settings.LOCKING = {"default": {"BACKEND": REDIS}}
    with get_lock("order:42", wait=0) as lease:
        for key in ("order:42", "lock:order:42"):
            assert cache.add(key, "cached")
        lease.confirm()
    assert not get_lock("order:42").locked()
