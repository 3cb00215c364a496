"""A backend on a Redis Cluster is closed while other threads and tasks find new servers."""

from typing import Any

from locking.backends.redis.cluster import Address, Cluster


class Server:
    """A server; looking at its transport is the moment in which another server is found."""

    def __init__(self, servers: dict[Address, Any]) -> None:
        self._servers = servers

    @property
    def transport(self) -> object:
        """Find another server."""
        self._servers[Address("found", len(self._servers))] = self
        return self


def test_servers_may_be_found_while_the_backend_is_closed():
    """Closing closes what it knew, and doesn't fail for what came meanwhile."""
    cluster: Any = object.__new__(Cluster)
    cluster._servers = {}
    cluster._servers[Address("known", 1)] = Server(cluster._servers)
    assert len(cluster.transports()) == 1
    assert len(cluster._servers) == 2
