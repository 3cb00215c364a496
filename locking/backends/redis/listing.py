"""What is held, and by whom: the index, of which each entry is looked at before it is shown, and heartbeats.

A hold that ends by itself leaves its entry behind. Entries go when a reader meets them, when the name is
locked again, and by a sweep like the one by which Redis itself expires keys: look at a few at random, and
go on while more than a quarter of them were stale. So about a quarter of an index is stale at most.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from locking.backends.base import HEARTBEAT_TTL, Heartbeat, Held
from locking.backends.capabilities import Counters, Heartbeats, Listing
from locking.backends.redis.protocol import Calls
from locking.backends.redis.scripts import (
    INCR_COUNTERS,
    INDEX_SCAN,
    LETTERS,
    NAMED,
    Entry,
    Request,
    command,
    escaped,
    is_hold,
    pairs_of,
    read_entry,
)
from locking.backends.redis.transport import run
from locking.exceptions import BackendError, BackendUnavailable

logger = logging.getLogger(__name__)

STRETCH: Final = 2000  # entries that the server looks through at a time, alone: about a millisecond
READINGS: Final = 20  # how often a page is read at most, because stale entries were met in it
SAMPLE: Final = 20
MAX_STALE: Final = SAMPLE // 4  # that end a sweep; Redis' own expiry cycle has both numbers
SWEEPS: Final = 200  # samples that one sweep of one index takes at most
SWEEP_EVERY: Final = 55  # seconds for which one sweep is enough
FORGOTTEN: Final = 8 * 24 * 3600  # seconds until an unswept index goes: the longest lease is shorter
NEAR: Final = 20  # keys among which a listing looks for locks of other clients
FAR: Final = 1000  # and a sweep


class RedisListing(Listing, Heartbeats, Counters):
    """The index of one alias, and the records of its processes."""

    calls: Calls
    _cursors: dict[tuple[int, str], bytes]  # where each server's keys are looked through next, by their type

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        """See the base class; locks of Redisson's clients appear once one of ours has met them."""
        if offset == 0:
            try:
                self._adopt(NEAR)
            except BackendUnavailable:
                raise
            except BackendError as error:  # the user may lack SCAN: our own locks are listed all the same
                logger.debug("not looking for locks of other clients: %s", error)
        return self.indexed(prefix, offset, limit)

    def indexed(self, prefix: str, offset: int, limit: int) -> list[Held]:
        """Return a page of the live holds that are in the index, the oldest first."""
        for _ in range(READINGS):
            if not self.settings.key_prefix.startswith(prefix):
                page = list(islice(self._matching(prefix.encode()), offset, offset + limit))
            else:
                page = self._read(offset, limit) if limit else []  # to `_read` 0 means all
            holds = self._look_at(page)
            live = [hold for hold in holds if hold is not None]
            if len(live) == len(holds):
                break
        return live

    def find_held(self, key: str, owner: str, kind: str) -> Held | None:
        listed = NAMED[kind]
        rest = f"{owner} {key}" if listed.SHARED else key
        (hold,) = self._look_at([read_entry(f"{listed.LETTER}{rest}".encode(), 0)])
        return hold if hold is not None and hold.owner == owner else None

    def count_held(self, *, prefix: str = "") -> int:
        """See the base class; what ended by itself and wasn't met since is counted too."""
        if self.settings.key_prefix.startswith(prefix):
            sizes = self._ask("ZCARD", *self.calls.index.all())
            return sum(max(0, size - 1) for size in sizes)  # without `~`
        return sum(1 for _ in self._matching(prefix.encode()))

    # reading the index

    def _matching(self, prefix: bytes) -> Iterator[Entry]:
        """Yield the entries whose key begins with `prefix`; on one server, the server looks for them."""
        if self.calls.index.clustered:
            yield from (entry for entry in self._read(0, 0) if entry.key.startswith(prefix))
            return
        (index,), start, looked_at = self.calls.index.all(), 0, STRETCH
        while looked_at == STRETCH:
            request = INDEX_SCAN.call([index], start, start + STRETCH - 1, prefix)
            looked_at, found = run(self.calls.call(request))
            yield from _entries(found)
            start += looked_at

    def _read(self, start: int, count: int) -> list[Entry]:
        """Return `count` entries (0 = all) from the `start`-th on, the oldest first."""
        first = 0 if self.calls.index.clustered else start
        parts = self._ask("ZRANGE", *self._in_use(), arguments=(first, start + count - 1, "WITHSCORES"))
        found = [entry for pairs in parts for entry in _entries(pairs)]
        if not self.calls.index.clustered:
            return found
        found.sort(key=lambda entry: entry.token)
        return found[start : start + count] if count else found

    def _in_use(self) -> list[bytes]:
        """Return the indexes that have entries; where there is one only, it isn't asked."""
        every = self.calls.index.all()
        if not self.calls.index.clustered:
            return every
        return [index for index, size in zip(every, self._ask("ZCARD", *every), strict=True) if size > 1]

    def _ask(self, verb: str, *keys: bytes, arguments: Sequence[str | int] = ()) -> list[Any]:
        return run(self.calls.call_many([command(verb, key, *arguments) for key in keys]))

    # looking at what is listed

    def _look_at(self, entries: Iterable[Entry]) -> list[Held | None]:
        """Return what is true of each entry; None = it was stale, and is out of the index now."""
        looked_at = list(entries)
        requests = [NAMED[each.kind](self.calls.index).look(each) for each in looked_at]
        replies = run(self.calls.call_many(requests))
        return [_as_held(each, reply) for each, reply in zip(looked_at, replies, strict=True)]

    # keeping it true

    def tidy(self) -> None:
        """Sweep, unless another process has done so within the last minute."""
        if run(self.calls.command("SET", self._record("swept"), 1, "NX", "EX", SWEEP_EVERY)):
            self.sweep()

    def sweep(self) -> None:
        """Take out stale entries, and put in locks of clients that don't list theirs."""
        for index in self._in_use():
            for _ in range(SWEEPS):
                (sample,) = self._ask("ZRANDMEMBER", index, arguments=(SAMPLE,))
                looked_at = self._look_at(read_entry(member, 0) for member in sample if is_hold(member))
                if looked_at.count(None) <= MAX_STALE:
                    break
            self._ask("EXPIRE", index, arguments=(FORGOTTEN,))
        self._adopt(FAR)

    def _adopt(self, count: int) -> None:
        """Look on through the next `count` keys of each server for what Redisson's clients hold."""
        prefix, pattern = self.settings.key_prefix.encode(), escaped(self.settings.key_prefix)
        for place, server in enumerate(run(self.calls.servers())):
            for kind in [kind(self.calls.index) for kind in NAMED.values() if kind.FOREIGN[0]]:
                sort, foreign = kind.FOREIGN
                matching = "MATCH", foreign.replace("%s", pattern), "COUNT", count, "TYPE", sort
                cursor = self._cursors.get((place, sort), b"0")
                self._cursors[place, sort], found = run(server.command("SCAN", cursor, *matching))
                run(self.calls.call_many([request for key in found for request in kind.adopt(key, prefix)]))

    # processes:
    # holdfast_presence:<KEY_PREFIX><client id>   JSON; its ttl tells how long ago the last sign of life was
    # holdfast_presence:<KEY_PREFIX>              a sorted set of the clients that have, or had, such a record
    # holdfast_figures:<KEY_PREFIX><minute>       a hash of sums

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
        run(self.calls.call_many(requests))

    def heartbeats(self, clients: Collection[str] | None = None) -> dict[str, Heartbeat]:
        """See the base class; of all clients, those that have ended by themselves are taken off the list."""
        listed, everyone = self._record("presence"), clients is None
        if clients is None:
            clients = [member.decode() for member in run(self.calls.command("ZRANGE", listed, 0, -1))]
        keys = [self._record("presence", client) for client in clients]
        replies = run(self.calls.call_many([command(verb, key) for verb in ("GET", "PTTL") for key in keys]))
        answers = zip(clients, replies[: len(keys)], replies[len(keys) :], strict=True)
        found = {
            client: Heartbeat(text.decode(), HEARTBEAT_TTL - left / 1000)
            for client, text, left in answers
            if text is not None
        }
        ended = [client for client in clients if everyone and client not in found]
        run(self.calls.call_many([command("ZREM", listed, client) for client in ended]))
        return found

    def add_counters(self, minute: int, figures: Mapping[str, int]) -> None:
        pairs = [part for name, more in figures.items() for part in (name.encode(), more)]
        run(self.calls.call(INCR_COUNTERS.call([self._record("figures", minute)], *pairs)))

    def figures_by_minute(self, minutes: Sequence[int]) -> list[dict[str, int]]:
        keys = [self._record("figures", minute) for minute in minutes]
        replies = run(self.calls.call_many([command("HGETALL", key) for key in keys]))
        return [{name.decode(): int(value) for name, value in pairs_of(reply)} for reply in replies]


def _entries(pairs: list[Any]) -> list[Entry]:
    """Read an answer with scores: pairs in RESP3, a flat list in RESP2."""
    if not (pairs and isinstance(pairs[0], list)):
        pairs = pairs_of(pairs)
    return [read_entry(member, float(score)) for member, score in pairs if is_hold(member)]


def _as_held(entry: Entry, reply: Any) -> Held | None:
    if reply is None:
        return None
    owner, count, left, token, waiters, since, *letter = reply
    return Held(
        key=entry.key.decode(),
        owner=owner.decode(),
        kind=LETTERS[letter[0].decode()].name if letter else entry.kind,
        count=count,
        remaining=None if left < 0 else left / 1000,
        token=int(token),
        waiters=waiters,
        since=int(float(since)) / 1_000_000 or None,
    )
