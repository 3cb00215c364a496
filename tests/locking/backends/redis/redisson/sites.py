"""Servers with a Redisson client on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.locking.backends.redis.redisson.harness import Java
from tests.locking.backends.redis.topologies.servers import Server, until


@dataclass
class CallSite:
    """The servers of one topology, and a Redisson client on them."""

    location: str | list[str]
    urls: list[str]
    nodes: list[Server]
    version: str
    log: Any
    java: Java

    def another_java(self) -> Java:
        """Start one more client."""
        return Java(self.version, self.urls, self.log)

    def listeners(self, channel: str) -> int:
        """Return how many subscriptions to `channel` there are, of either sort, on all nodes."""
        return sum(
            node.ask("PUBSUB", sort, channel)[1] for node in self.nodes for sort in ("NUMSUB", "SHARDNUMSUB")
        )

    def until_silent(self) -> None:
        """Return once no client listens to any lock: Redisson unsubscribes some time after its wait."""
        until(lambda: not any(map(self.heard_on, self.nodes)), "no client to listen")

    @staticmethod
    def heard_on(node: Server) -> list[bytes]:
        """Return the channels of locks that have a subscriber, on one node."""
        return [
            each for sort in ("CHANNELS", "SHARDCHANNELS") for each in node.ask("PUBSUB", sort, "redisson_*")
        ]

    def until_heard(self, name: str) -> None:
        """Return once a client listens to the lock's channel."""
        until(lambda: self.listeners(f"redisson_lock__channel:{{{name}}}"), f"a listener to {name}")

    def home(self, name: str) -> Server:
        """Return the node that has the lock."""
        return next(node for node in self.nodes if name in self.names_on(node))

    @staticmethod
    def names_on(node: Server) -> list[str]:
        """Return the keys of one node."""
        with node.client() as client:
            return [key.decode() for key in client.keys("*")]
