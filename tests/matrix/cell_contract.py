"""The shipped contract, on this cell's versions."""

from typing import ClassVar

from locking.testing.contract import LockContract


class TestRedis(LockContract):
    """Through a cache of django-redis."""

    settings: ClassVar = {"CACHE": "default"}
    unreachable: ClassVar = {"LOCATION": "redis://127.0.0.1:1/0"}


class TestDjangosRedisCache(LockContract):
    """Through a cache of Django's own Redis backend."""

    settings: ClassVar = {"CACHE": "django"}


class TestMemory(LockContract):
    """In memory."""

    settings: ClassVar = {"BACKEND": "locking.backends.memory.MemoryBackend"}
