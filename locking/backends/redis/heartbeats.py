"""Heartbeats of processes and their counters, in Redis.

holdfast_presence:<KEY_PREFIX><client id>   JSON; its ttl tells how long ago the last sign of life was
holdfast_presence:<KEY_PREFIX>              a sorted set of the clients that have such a record, or had one
holdfast_figures:<KEY_PREFIX><minute>       a hash of sums
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.backends.redis.scripts import Command, Request, command, incr_counters_request
from locking.backends.redis.transport import Client


class HeartbeatStore:
    """The records of one alias."""

    def __init__(self, wire: Client, key_prefix: str) -> None:
        self._client, self._prefix = wire, key_prefix

    def _key(self, what: str, name: str | int) -> bytes:
        return f"holdfast_{what}:{self._prefix}{name}".encode()

    def publish(self, records: Mapping[str, str | None], forget: Collection[str]) -> None:
        """Store heartbeats; see `BaseLockBackend.publish_heartbeats`."""
        requests: list[Request | Command] = []
        for client, text in records.items():
            key = self._key("presence", client)
            same = command("EXPIRE", key, HEARTBEAT_TTL)
            requests.append(same if text is None else command("SET", key, text, "EX", HEARTBEAT_TTL))
        requests += [command("DEL", self._key("presence", client)) for client in forget]
        listed, new = (
            self._key("presence", ""),
            [client for client, text in records.items() if text is not None],
        )
        requests += [command("ZADD", listed, 0, client) for client in new]
        requests += [command("ZREM", listed, client) for client in forget]
        self._client.call_many(requests)

    def read_all(self) -> dict[str, Heartbeat]:
        """Return every record, and take those that have ended by themselves off the list."""
        listed = self._key("presence", "")
        (members,) = self._client.call_many([command("ZRANGE", listed, 0, -1)])
        clients = [member.decode() for member in members]
        found = self.read(clients) if clients else {}
        ended: list[Request | Command] = [
            command("ZREM", listed, client) for client in clients if client not in found
        ]
        if ended:
            self._client.call_many(ended)
        return found

    def read(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        """Return what is known of these clients."""
        keys = [self._key("presence", client) for client in clients]
        requests: list[Request | Command] = [command("GET", key) for key in keys]
        replies = self._client.call_many([*requests, *(command("PTTL", key) for key in keys)])
        texts, lefts = replies[: len(keys)], replies[len(keys) :]
        return {
            client: Heartbeat(text.decode(), HEARTBEAT_TTL - left / 1000)
            for client, text, left in zip(clients, texts, lefts, strict=True)
            if text is not None
        }

    def add_counters(self, minute: int, figures: Mapping[str, int]) -> None:
        """Add to a minute's sums."""
        self._client.call(incr_counters_request(self._key("figures", minute), figures))

    def figures(self, minutes: Sequence[int]) -> dict[str, int]:
        """Return the sums of these minutes."""
        sums: dict[str, int] = {}
        for name, value in (pair for each in self.by_minute(minutes) for pair in each.items()):
            sums[name] = sums.get(name, 0) + value
        return sums

    def by_minute(self, minutes: Sequence[int]) -> list[dict[str, int]]:
        """Return the sums of each minute."""
        replies = self._client.call_many([command("HGETALL", self._key("figures", each)) for each in minutes])
        return [{name.decode(): int(value) for name, value in _pairs(reply)} for reply in replies]


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return a hash as pairs: a dict in RESP3, a flat list in RESP2."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))
