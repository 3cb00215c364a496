"""Heartbeats of processes and their counters, in Redis.

holdfast_presence:<KEY_PREFIX><client id>   JSON; its ttl tells how long ago the last sign of life was
holdfast_presence:<KEY_PREFIX>              a sorted set of the clients that have such a record, or had one
holdfast_figures:<KEY_PREFIX><minute>       a hash of sums
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.backends.capabilities import Counters, Heartbeats
from locking.backends.redis.scripts import INCR_COUNTERS, Request, command
from locking.backends.redis.verbs import RedisVerbs


class HeartbeatVerbs(RedisVerbs, Heartbeats, Counters):
    """The records of one alias."""

    def _record(self, what: str, name: str | int = "") -> bytes:
        return f"holdfast_{what}:{self.settings.key_prefix}{name}".encode()

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        listed, requests = self._record("presence"), list[Request]()
        for client, text in records.items():
            key = self._record("presence", client)
            if text is None:
                requests.append(command("EXPIRE", key, HEARTBEAT_TTL))
            else:
                requests.append(command("SET", key, text, "EX", HEARTBEAT_TTL))
                requests.append(command("ZADD", listed, 0, client))
        for client in forget:
            requests += [command("DEL", self._record("presence", client)), command("ZREM", listed, client)]
        self._client.call_many(requests)

    def processes(self) -> dict[str, Heartbeat]:
        """See the base class; takes those that have ended by themselves off the list."""
        listed = self._record("presence")
        clients = [member.decode() for member in self._client.command("ZRANGE", listed, 0, -1)]
        found = self.heartbeats(clients)
        self._client.call_many([command("ZREM", listed, each) for each in clients if each not in found])
        return found

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        keys = [self._record("presence", client) for client in clients]
        replies = self._client.call_many([command(verb, key) for verb in ("GET", "PTTL") for key in keys])
        answers = zip(clients, replies[: len(keys)], replies[len(keys) :], strict=True)
        return {
            client: Heartbeat(text.decode(), HEARTBEAT_TTL - left / 1000)
            for client, text, left in answers
            if text is not None
        }

    def add_counters(self, minute: int, figures: Mapping[str, int]) -> None:
        pairs = [part for name, more in figures.items() for part in (name.encode(), more)]
        self._client.call(INCR_COUNTERS.call([self._record("figures", minute)], *pairs))

    def figures_by_minute(self, minutes: Sequence[int]) -> list[dict[str, int]]:
        keys = [self._record("figures", minute) for minute in minutes]
        replies = self._client.call_many([command("HGETALL", key) for key in keys])
        return [{name.decode(): int(value) for name, value in _pairs(reply)} for reply in replies]


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return a hash as pairs: a dict in RESP3, a flat list in RESP2."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))
