"""The backends under test, in one table: a new one is an entry here, and its file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Backend:
    """One row: how to reach it, and how to miss it."""

    settings: Mapping[str, Any]
    unreachable: Mapping[str, Any] | None = None
    shortest_ttl: float = 0.15


REDIS = "locking.backends.redis.RedisBackend"
MEMORY = "locking.backends.memory.MemoryBackend"

BACKENDS = {
    "redis": Backend(
        settings={"BACKEND": REDIS, "CACHE": "default"},
        unreachable={"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1:1/0"},
    ),
    "memory": Backend(settings={"BACKEND": MEMORY}),
}
