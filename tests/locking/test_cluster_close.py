"""A backend on a Redis Cluster is closed while other threads and tasks find new servers."""

import asyncio
from typing import Any

from locking.backends.redis.cluster import Address, ClusterRoom, ClusterWire


class Finding(dict):
    """Connections by server; the first to be closed is the moment in which another server is found."""

    def found(self):
        """Add a server."""
        self[Address("found", 2)] = (self.closes(), self.closes()) if self.pairs else self.acloses()

    def __init__(self, *, pairs):
        super().__init__()
        self.pairs, self.closed = pairs, 0
        self[Address("known", 1)] = (self.closes(), self.closes()) if pairs else self.acloses()

    def closes(self):
        """Return a connection of threads."""
        outer = self

        class Connection:
            def close(self):
                outer.closed += 1
                outer.found()

        return Connection()

    def acloses(self):
        """Return a connection of tasks."""
        outer = self

        class Connection:
            async def close(self):
                outer.closed += 1
                outer.found()

        return Connection()


def test_threads_may_find_a_server_while_the_backend_is_closed():
    """Closing closes what it knew, and doesn't fail for what came meanwhile."""
    wire: Any = object.__new__(ClusterWire)
    wire._servers = Finding(pairs=True)
    wire.close()
    assert wire._servers.closed == 2


def test_tasks_may_find_a_server_while_the_backend_is_closed():
    """The same for asyncio, where the loop runs other tasks between two closings."""
    room: Any = object.__new__(ClusterRoom)
    room._rooms = Finding(pairs=False)
    asyncio.run(room.close())
    assert room._rooms.closed == 1
