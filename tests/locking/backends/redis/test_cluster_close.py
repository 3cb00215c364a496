"""A backend on a Redis Cluster is closed while other threads and tasks find new servers."""

from types import SimpleNamespace
from typing import Any, cast

from locking.backends.redis import RedisBackend
from locking.backends.redis.cluster import Address, Cluster


class Server:
    """A server; another one is found while it is closed."""

    def __init__(self, servers: dict[Address, Any]) -> None:
        self._servers = servers

    async def shutdown(self) -> None:
        """Find another server."""
        self._servers[Address("found", len(self._servers))] = self


def test_servers_may_be_found_while_the_backend_is_closed():
    """Closing closes what it knew, and doesn't fail for what came meanwhile."""
    cluster: Any = object.__new__(Cluster)
    cluster._servers = {}
    cluster._servers[Address("known", 1)] = Server(cluster._servers)
    RedisBackend.close(cast(RedisBackend, SimpleNamespace(calls=cluster)))
    assert len(cluster._servers) == 2
