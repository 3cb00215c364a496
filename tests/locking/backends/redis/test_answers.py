"""Every combination of what three servers have and answer, for every kind of owner.

The same model as the explorer's: the real protocol and the real scripts. Here each server is in a state of
its own before an attempt, and answers it in a way of its own; afterwards all of them are there again, what
was late is served, and what is owed is paid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement, product
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from locking import LockError, get_lock
from locking.backends.redis.kinds import Ordinary
from locking.backends.redlock import RedlockBackend
from locking.core.breaker import breaker
from locking.core.handler import locks
from locking.core.lease import HOLDS
from locking.core.lock import SingleLock
from locking.utils.ownership import client_of_work
from tests.backends import REDLOCK
from tests.locking.backends.redis.explorer import (
    GIVEN,
    KEY,
    RIVAL,
    RIVAL_TTL,
    TTL,
    Case,
    Fault,
    ThreadConnection,
    World,
    model_servers,
    parsed,
)
from tests.locking.backends.redis.model import ModelServer

PORTS = (6379, 6380, 6381)
BEFORE = {"free": "", "ours": GIVEN, "another's": RIVAL}
ANSWERS = {
    "answers": None,
    "is silent": Fault.LOST_REQUEST,
    "is late": Fault.LATE_REQUEST,
    "loses its answer": Fault.LOST_ANSWER,
    "refuses": Fault.READ_ONLY,
}
OWNERS: dict[str, Callable[[SingleLock], None]] = {
    "new": lambda lock: None,
    "of a work": lambda lock: lock.act_for(client_of_work("work")),
    "given": lambda lock: lock.act_as(GIVEN),
}


class Answering(ThreadConnection):
    """A connection to a server whose every answer goes wrong in the same way, while it does."""

    def _do(self, name: str, action: Callable[[Fault | None], Any]) -> Any:
        return action(self.world.moods.get(self.port) if name == "send" else None)


class Server(NamedTuple):
    """What one server has before the attempt, and how it answers."""

    before: str
    answer: str


class Play:
    """Attempts under one kind of owner, each with three servers."""

    def __init__(self, owner: str, settings: Any, patch: pytest.MonkeyPatch) -> None:
        self.owner, self.world = owner, World()
        patch.setattr("locking.utils.clock._read", lambda: self.world.clock.now)
        patch.setattr("locking.core.lock.watchdogs", SimpleNamespace(watch=lambda lease: None))
        patch.setattr("locking.core.lock.release_retrier", SimpleNamespace(schedule=self._pend))
        patch.setattr("locking.backends.redis.backend.servers_of", self._servers_of)
        urls = [f"redis://model:{port}" for port in PORTS]
        settings.LOCKING = {"default": {"BACKEND": REDLOCK, "LOCATION": urls, "KEY_PREFIX": ""}}

    def _servers_of(self, settings: Any) -> Any:
        port = int(settings.location.rpartition(":")[2])
        return model_servers(self.world, Case("redlock", get_lock, "lock"), port, Answering)

    def _pend(self, backend: Any, key: str, owner: str, ttl: float) -> None:
        self.world.pending.append((backend, key, owner))

    def problems(self, servers: tuple[Server, ...]) -> list[str]:
        """Make one attempt, let everything settle, and return what is wrong then."""
        self.world = world = World()
        world.servers = {port: ModelServer(world.clock) for port in PORTS}
        locks.reset()
        HOLDS.clear()
        breaker.reset()  # else the servers that were silent for one combination aren't asked in the next
        backend = locks["default"]
        assert isinstance(backend, RedlockBackend)
        for server, model in zip(servers, world.servers.values(), strict=True):
            if who := BEFORE[server.before]:
                request = Ordinary(backend._kind.index).acquire(KEY, who, RIVAL_TTL, keep=False, queue=False)
                model.execute(*parsed(request.by_source)[0])
        world.moods = {
            port: fault
            for port, server in zip(PORTS, servers, strict=True)
            if (fault := ANSWERS[server.answer]) is not None
        }
        lock = get_lock(KEY, ttl=TTL, wait=0)
        OWNERS[self.owner](lock)  # type: ignore[arg-type]
        try:
            lease = lock.acquire()
        except LockError:
            lease = None
        self._settle(backend)
        return list(self._wrong(servers, lease))

    def _settle(self, backend: RedlockBackend) -> None:
        """All servers are there again: what was late is served, and what is owed is paid, twice."""
        world = self.world
        world.moods = {}
        for late in world.late:
            late()
        for _ in range(3):
            world.clock.sleep(1.5)
            backend.holder(KEY)
            for _, key, owner in world.pending:
                backend.release(key, owner)

    def _wrong(self, servers: tuple[Server, ...], lease: Any) -> Iterator[str]:
        owners = [_owner_on(model) for model in self.world.servers.values()]
        kept = [BEFORE[server.before] for server in servers]
        if any(who and who != now for who, now in zip(kept, owners, strict=True)):
            yield f"a hold from before the attempt is gone: {kept} became {owners}"
        if lease is not None and owners.count(lease.owner) < 2:
            yield f"granted, and no majority has it: {owners}"
        if lease is None and self.owner != "given" and any(who not in ("", RIVAL) for who in owners):
            yield f"not granted, and not given back: {owners}"
        if lease is None and self.owner == "given":
            new = [
                server
                for server, now in zip(servers, owners, strict=True)
                if (server.before, server.answer, now) == ("free", "answers", GIVEN)
            ]
            if new:
                yield f"what was new for a given owner was not given back: {owners}"


def _owner_on(model: ModelServer) -> str:
    if not model.do_exists(KEY.encode()):
        return ""
    (owner,) = model.values[KEY.encode()]
    return str(owner.decode())


def plays(owner: str) -> Iterator[tuple[Server, ...]]:
    """Yield every choice of three servers; which of them is which makes no difference."""
    before = [name for name in BEFORE if owner == "given" or name != "ours"]
    each = [Server(*server) for server in product(before, ANSWERS)]
    return combinations_with_replacement(each, len(PORTS))


@pytest.fixture
def play(settings, monkeypatch):
    """Call it with a kind of owner."""
    logging.disable(logging.CRITICAL)
    yield lambda owner: Play(owner, settings, monkeypatch)
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("owner", OWNERS)
def test_every_combination_of_answers_keeps_what_was_there(play, owner):
    """What was held before an attempt stays; what the attempt took is given back, or is the holder's."""
    playing = play(owner)
    wrong = {servers: found for servers in plays(owner) if (found := playing.problems(servers))}
    assert wrong == {}


def undo_everything(patch):
    """A failed attempt gives back whatever it was granted, and tells the silent ones to."""
    undo = RedlockBackend._undo

    def careless(self, *args, owner_is_given):
        undo(self, *args, owner_is_given=False)

    patch.setattr(RedlockBackend, "_undo", careless)


def undo_nothing(patch):
    """A failed attempt leaves what it was granted."""
    patch.setattr(RedlockBackend, "_undo", lambda self, *args, **options: None)


@pytest.mark.parametrize(
    ("mutant", "owner"), [(undo_everything, "given"), (undo_nothing, "given"), (undo_nothing, "new")]
)
def test_an_undo_without_its_rule_is_found_out(play, monkeypatch, mutant, owner):
    """With the rule taken out, some combination of answers shows it."""
    playing = play(owner)
    mutant(monkeypatch)
    assert any(playing.problems(servers) for servers in plays(owner))
