"""Quorum listing: the holds that a majority of servers lists, and the heartbeats on any of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from locking.backends.base import Heartbeat, Held
from locking.backends.redis.heartbeats import HeartbeatStore
from locking.backends.redis.kinds import kind_named
from locking.backends.redis.listing import Listing
from locking.backends.redis.transport import Client
from locking.exceptions import BackendUnavailable

T = TypeVar("T")
R = TypeVar("R")

MOST: Final = 10_000
"""LeaseExpirer of each server that are looked at, the oldest first."""


class QuorumListing:
    """The lists of all servers of one alias.

    Args:
        wires: the servers.
        key_prefix: of the alias.
        quorum: how many must list a hold, and answer at all.
    """

    def __init__(self, wires: Sequence[Client], key_prefix: str, quorum: int) -> None:
        self._listings = [Listing(w, key_prefix, partial(kind_named, index=w.index)) for w in wires]
        self._books = [HeartbeatStore(wire, key_prefix) for wire in wires]
        self._quorum = quorum

    def held(self, prefix: str) -> list[list[Held]]:
        """Return what a majority lists, the oldest first: for each hold what each of them says of it."""
        said: defaultdict[tuple[str, str], list[Held]] = defaultdict(list)
        for holds in self._from_each(self._listings, lambda listing: listing.held(prefix, 0, MOST)):
            for hold in holds:
                said[hold.key, hold.owner].append(hold)
        agreed = [holds for holds in said.values() if len(holds) >= self._quorum]
        return sorted(agreed, key=lambda holds: min(hold.since or 0.0 for hold in holds))

    def tidy(self) -> None:
        """Sweep every list; see `Listing.tidy`."""
        self._from_each(self._listings, Listing.tidy)

    def publish(self, records: Mapping[str, str | None], forget: Collection[str]) -> None:
        """Store heartbeats; see `BaseLockBackend.publish_heartbeats`."""
        self._from_each(self._books, lambda store: store.publish(records, forget))

    def read(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        """Return the latest that is known of these clients."""
        return self._latest(lambda book: book.read(clients))

    def read_all(self) -> dict[str, Heartbeat]:
        """Return the latest of every record."""
        return self._latest(HeartbeatStore.read_all)

    def _latest(self, read: Callable[[HeartbeatStore], dict[str, Heartbeat]]) -> dict[str, Heartbeat]:
        known: dict[str, Heartbeat] = {}
        for told in self._from_each(self._books, read):
            for client, presence in told.items():
                if client not in known or (presence.silent or 0.0) < (known[client].silent or 0.0):
                    known[client] = presence
        return known

    def _from_each(self, parts: Sequence[T], ask: Callable[[T], R]) -> list[R]:
        answers, silent = list[R](), list[BackendUnavailable]()
        for part in parts:
            try:
                answers.append(ask(part))
            except BackendUnavailable as error:
                silent.append(error)
        if len(answers) < self._quorum:
            raise silent[0]
        return answers
