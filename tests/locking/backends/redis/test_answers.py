"""Every combination of what servers have and answer, for every kind of owner, where several have a say.

The same model as the explorer's: the real protocol and the real scripts. Each server is in a state of its own
before an attempt, and answers it in a way of its own: the three of Redlock, a master and the replica that has
to confirm, a server of a cluster and the one that it points to. Afterwards all of them are there again, what
was late is served, and what is owed is paid.

etcd and ZooKeeper agree among themselves, and are one server to their client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement, product
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from locking import LockError, get_lock
from locking.backends.redis.protocol import NotReplicated
from locking.backends.redis.scripts import Index, Ordinary
from locking.backends.redlock import RedlockBackend
from locking.core.handler import locks
from locking.core.lease import HOLDS
from locking.core.lock import SingleLock
from locking.core.waits import breaker
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


class Scene(NamedTuple):
    """What an attempt meets: servers, how many replicas confirm, what a cluster's first server says."""

    servers: tuple[Server, ...]
    replicas: int = 0
    route: str = ""


class Engine(NamedTuple):
    """An engine with several servers: an entry of LOCKING, how it is modelled, and what its scenes are."""

    entry: dict[str, Any]
    case: Case
    scenes: Callable[[list[Server]], Iterator[Scene]]
    quorum: int = 1


def of_redlock(each: list[Server]) -> Iterator[Scene]:
    """Yield every choice of three servers; which of them is which makes no difference."""
    return map(Scene, combinations_with_replacement(each, len(PORTS)))


def of_replicas(each: list[Server]) -> Iterator[Scene]:
    """Yield every master, with and without a replica that confirms."""
    return (Scene((server,), replicas) for server, replicas in product(each, (0, 1)))


def of_cluster(each: list[Server]) -> Iterator[Scene]:
    """Yield every server that has the slot by now, behind every answer of the one that had it."""
    first = [Server("free", answer) for answer in ANSWERS]
    return (Scene(servers, route=route) for *servers, route in product(first, each, ("moved", "asks")))  # type: ignore[arg-type]


ONE = {"LOCATION": f"redis://model:{PORTS[0]}", "KEY_PREFIX": ""}
ENGINES = {
    "redlock": Engine(
        {"BACKEND": REDLOCK, "LOCATION": [f"redis://model:{port}" for port in PORTS], "KEY_PREFIX": ""},
        Case("redlock", get_lock, "lock"),
        of_redlock,
        quorum=2,
    ),
    "replicas": Engine(ONE, Case("replicas", get_lock, "lock", neighbor="a replica", ack=True), of_replicas),
    "cluster": Engine(ONE, Case("cluster", get_lock, "lock", cluster="moved"), of_cluster),
}


class Play:
    """Attempts on one engine under one kind of owner."""

    def __init__(self, engine: str, owner: str, settings: Any, patch: pytest.MonkeyPatch) -> None:
        self.engine, self.owner, self.world = ENGINES[engine], owner, World()
        patch.setattr("locking.utils.clock._read", lambda: self.world.clock.now)
        patch.setattr("locking.core.lock.watchdogs", SimpleNamespace(watch=lambda lease: None))
        patch.setattr("locking.core.pending_release.release_retrier.schedule", self._pend)
        patch.setattr("locking.backends.redis.backend.servers_of", self._servers_of)
        settings.LOCKING = {"default": self.engine.entry}

    def _servers_of(self, settings: Any) -> Any:
        port = int(settings.location.rpartition(":")[2])
        return model_servers(self.world, self.engine.case, port, Answering)

    def _pend(self, backend: Any, key: str, owner: str, ttl: float) -> None:
        self.world.pending.append((backend, key, owner))

    def scenes(self) -> Iterator[Scene]:
        """Yield all that an attempt can meet; only a given owner may have had the lock before."""
        before = [name for name in BEFORE if self.owner == "given" or name != "ours"]
        return self.engine.scenes([Server(*server) for server in product(before, ANSWERS)])

    def problems(self, scene: Scene) -> list[str]:
        """Make one attempt, let everything settle, and return what is wrong then."""
        self.world = world = World()
        world.servers = {
            port: ModelServer(world.clock) for port, _ in zip(PORTS, scene.servers, strict=False)
        }
        locks.reset()
        HOLDS.clear()
        breaker.reset()  # else the servers that were silent for one combination aren't asked in the next
        backend: Any = locks["default"]
        self._set(scene)
        lock = get_lock(KEY, ttl=TTL, wait=0)
        OWNERS[self.owner](lock)  # type: ignore[arg-type]
        try:
            lease = lock.acquire()
        except LockError:
            lease = None
        self._settle(backend)
        return list(self._wrong(scene, lease))

    def _set(self, scene: Scene) -> None:
        """Have each server be as it is before the attempt; nothing of that goes wrong."""
        models = list(self.world.servers.values())
        for server, model in zip(scene.servers, models, strict=True):
            model.replicas = scene.replicas
            if who := BEFORE[server.before]:
                request = Ordinary(Index("")).acquire(KEY, who, RIVAL_TTL, keep=False, queue=False)
                model.execute(*parsed(request.by_source)[0])
        if scene.route == "moved":
            models[0].moved = f"0 model:{PORTS[1]}"
        elif scene.route == "asks":
            models[0].asks = f"0 model:{PORTS[1]}"
        self.world.moods = {
            port: fault
            for port, server in zip(PORTS, scene.servers, strict=False)
            if (fault := ANSWERS[server.answer]) is not None
        }

    def _settle(self, backend: Any) -> None:
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

    def _wrong(self, scene: Scene, lease: Any) -> Iterator[str]:
        owners = [_owner_on(model) for model in self.world.servers.values()]
        kept = [BEFORE[server.before] for server in scene.servers]
        if any(who and who != now for who, now in zip(kept, owners, strict=True)):
            yield f"a hold from before the attempt is gone: {kept} became {owners}"
        if lease is not None and owners.count(lease.owner) < self.engine.quorum:
            yield f"granted, and no majority has it: {owners}"
        if lease is not None and self.engine.case.ack and not scene.replicas:
            yield "granted, and no replica has it"
        if lease is None and self.owner != "given" and any(who not in ("", RIVAL) for who in owners):
            yield f"not granted, and not given back: {owners}"
        if lease is None and self.owner == "given":
            new = [
                server
                for server, now in zip(scene.servers, owners, strict=True)
                if (server.before, server.answer, now) == ("free", "answers", GIVEN)
            ]
            if new:
                yield f"what was new for a given owner was not given back: {owners}"


def _owner_on(model: ModelServer) -> str:
    if not model.do_exists(KEY.encode()):
        return ""
    (owner,) = model.values[KEY.encode()]
    return str(owner.decode())


@pytest.fixture
def play(settings, monkeypatch):
    """Call it with an engine and a kind of owner."""
    logging.disable(logging.CRITICAL)
    yield lambda engine, owner: Play(engine, owner, settings, monkeypatch)
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_combination_of_answers_keeps_what_was_there(play, engine, owner):
    """What was held before an attempt stays; what the attempt took is given back, or is the holder's."""
    playing = play(engine, owner)
    wrong = {scene: found for scene in playing.scenes() if (found := playing.problems(scene))}
    assert wrong == {}


def undo_everything(patch):
    """A failed attempt gives back whatever it was granted, and tells the silent ones to."""
    undo = RedlockBackend._undo

    def careless(self, *args, is_given):
        undo(self, *args, is_given=False)

    patch.setattr(RedlockBackend, "_undo", careless)


def undo_nothing(patch):
    """A failed attempt leaves what it was granted."""
    patch.setattr(RedlockBackend, "_undo", lambda self, *args, **options: None)


def undo_what_is_not_replicated(patch):
    """An attempt that no replica confirms gives back also what its owner held before it."""
    patch.setattr(NotReplicated, "is_new", property(lambda error: True, lambda error, known: None))


def leave_what_is_not_replicated(patch):
    """An attempt that no replica confirms leaves what it was granted."""
    patch.setattr(NotReplicated, "is_new", property(lambda error: False, lambda error, known: None))


def release_a_given_owner(patch):
    """An attempt of unknown outcome is released later, whatever its owner held before it."""
    patch.setattr(SingleLock, "_may_undo", lambda self, first: True)


def release_nothing_later(patch):
    """An attempt of unknown outcome is forgotten."""
    patch.setattr(SingleLock, "_may_undo", lambda self, first: False)


@pytest.mark.parametrize(
    ("mutant", "engine", "owner"),
    [
        (undo_everything, "redlock", "given"),
        (undo_nothing, "redlock", "given"),
        (undo_nothing, "redlock", "new"),
        (undo_what_is_not_replicated, "replicas", "given"),
        (leave_what_is_not_replicated, "replicas", "given"),
        (release_a_given_owner, "replicas", "given"),
        (release_a_given_owner, "cluster", "given"),
        (release_nothing_later, "cluster", "of a work"),
    ],
)
def test_an_undo_without_its_rule_is_found_out(play, monkeypatch, mutant, engine, owner):
    """With the rule taken out, some combination of answers shows it."""
    playing = play(engine, owner)
    mutant(monkeypatch)
    assert any(playing.problems(scene) for scene in playing.scenes())
