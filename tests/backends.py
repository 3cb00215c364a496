"""The backends under test, in one table: a new one is an entry here, and its file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Backend:
    """One row: how to reach it, and how to miss it."""

    settings: Mapping[str, Any]
    unreachable: Mapping[str, Any] | None = None
    shortest_ttl: float = 0.15
    room: str | None = None
    """The fixture that starts its server, or skips, and gives settings of an empty room there."""

    def reached(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        """Return the settings, with the server's address and an empty room on it."""
        if self.room is None:
            return dict(self.settings)
        room = request.getfixturevalue(self.room)
        options = {**self.settings.get("OPTIONS", {}), **room.get("OPTIONS", {})}
        return {**self.settings, **room, "OPTIONS": options}


REDIS = "locking.backends.redis.RedisBackend"
MEMORY = "locking.backends.memory.MemoryBackend"
ZOOKEEPER = "locking.backends.zookeeper.ZooKeeperBackend"
ETCD = "locking.backends.etcd.EtcdBackend"

BACKENDS = {
    "redis": Backend(
        settings={"BACKEND": REDIS, "CACHE": "default"},
        unreachable={"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1:1/0"},
    ),
    "memory": Backend(settings={"BACKEND": MEMORY}),
    "zookeeper": Backend(
        # Long enough for a machine that is busy, short enough to wait for the end of a killed process.
        settings={"BACKEND": ZOOKEEPER, "OPTIONS": {"session_timeout": 5.0}},
        unreachable={"BACKEND": ZOOKEEPER, "LOCATION": "127.0.0.1:1", "OPTIONS": {"timeout": 0.3}},
        shortest_ttl=0.3,
        room="zookeeper_room",
    ),
    "etcd": Backend(
        settings={"BACKEND": ETCD},
        unreachable={"BACKEND": ETCD, "LOCATION": "http://127.0.0.1:1"},
        shortest_ttl=0.3,
        room="etcd_room",
    ),
}
