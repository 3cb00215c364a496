"""Drives the client of Redis without a server, and lets every step of a verb go wrong.

Beneath both drivers, threads and asyncio, lie connections to a model of the server (`model`), on a clock that
only moves when a caller waits. Each connect, send and read of a connection is a *step*; a *schedule* says
which step meets which fault. After a schedule the world settles (late requests arrive, pending releases are
carried out), and the invariants are checked: see `Explorer._check`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import selectors
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import hiredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from locking import LockError, get_lock, get_read_lock, get_semaphore, get_write_lock
from locking.backends.redis import RedisBackend, async_transport
from locking.backends.redis.async_transport import AsyncServer, EventLoops, Servers
from locking.backends.redis.cluster import Address, Cluster, SlotMap
from locking.backends.redis.protocol import ReplicaAck, Terms
from locking.backends.redis.scripts import Index, command
from locking.backends.redis.transport import ThreadServer
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.core.lease import HOLDS, State, held_by
from locking.core.lock import SingleLock
from locking.core.renewal import renew
from locking.core.waits import breaker
from locking.utils.ownership import client_of_work, current_context
from tests.locking.backends.redis.model import Clock, ModelServer

TIMEOUT = 5.0
TTL = 30.0
RIVAL_TTL = 600.0
WAIT = 20.0
KEY = "a"
RIVAL = "00000000-0000-8000-8000-0000000000aa:1"
GIVEN = "00000000-0000-8000-8000-0000000000cc:1"
JAVA = "11111111-2222-4333-8444-555555555555:7"
BYSTANDER = "00000000-0000-8000-8000-0000000000bb:1"
SHORT_TTL = TTL / 2
MILLISECOND = 0.001
MOST_STEPS = 300
NOTHING = object()
STAYING = ("stays", "stays, ends", "stays, releases")


class Fault(Enum):
    """What goes wrong at a step."""

    INTERRUPTED_BEFORE = "a signal handler raises, or the task is cancelled, before it"
    INTERRUPTED_AFTER = "the same, after it"
    LOST_REQUEST = "the request never arrives"
    LOST_ANSWER = "the request is served, the answer never arrives"
    LATE_ANSWER = "the answer arrives after its reader gave up"
    LATE_REQUEST = "the request is served after its sender gave up"
    OVERTAKEN = "the request is served after the two that follow it"
    CLOSED = "the server closes the socket"
    CLOCK = "the process sleeps for longer than the lease"
    FORGOTTEN = "the server restarts and has lost its data"
    READ_ONLY = "the server is a replica by now"


INTERRUPTIONS = (Fault.INTERRUPTED_BEFORE, Fault.INTERRUPTED_AFTER)
FAULTS: dict[str, tuple[Fault, ...]] = {
    "connect": (*INTERRUPTIONS, Fault.CLOSED, Fault.CLOCK),
    "send": tuple(Fault),
    "read": (*INTERRUPTIONS, Fault.CLOSED, Fault.CLOCK, Fault.FORGOTTEN),
}
Schedule = tuple[tuple[int, Fault], ...]


class Violation(AssertionError):
    """An invariant doesn't hold."""


class Cancelled(BaseException):
    """What a signal handler raises, such as Celery's soft time limit."""


def parsed(packet: bytes) -> list[list[bytes]]:
    """Return the requests in a packet."""
    reader = hiredis.Reader()
    reader.feed(packet)
    found = []
    while (request := reader.gets()) is not False:
        found.append(request)
    return found


@dataclass
class World:
    """The servers, the clock, the schedule, and what happened."""

    schedule: Schedule = ()
    clock: Clock = field(default_factory=Clock)
    steps: list[str] = field(default_factory=list)
    late: list[Callable[[], object]] = field(default_factory=list)
    overtaken: list[tuple[int, Callable[[], object]]] = field(default_factory=list)
    served: int = 0
    rivals: deque[Callable[[], object]] = field(default_factory=deque)
    giving_up: deque[Callable[[], object]] = field(default_factory=deque)
    ending: deque[Callable[[], object]] = field(default_factory=deque)
    pending: list[tuple[Any, str, str]] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)
    moods: dict[int, Fault] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    is_quiet: bool = False

    def __post_init__(self) -> None:
        self.servers = {6379: ModelServer(self.clock), 6380: ModelServer(self.clock)}
        self.server = self.servers[6379]

    def step(self, name: str) -> Fault | None:
        """Count a step and return what goes wrong at it."""
        if self.is_quiet:
            return None
        self.steps.append(name)
        if len(self.steps) > MOST_STEPS:
            raise Violation("a verb goes on and on")
        fault = next((fault for at, fault in self.schedule if at == len(self.steps) - 1), None)
        if fault is Fault.CLOCK:
            self.clock.sleep(2 * TTL)
        if fault is Fault.FORGOTTEN:
            self.server.forget()
            for connection in self.connections:
                connection.end()
        return fault

    def serve(self, request: Callable[[], object]) -> Any:
        """Serve a request, and then those that were overtaken by enough others."""
        self.served += 1
        reply = request()
        due = [late for at, late in self.overtaken if at <= self.served]
        self.overtaken = [each for each in self.overtaken if each[0] > self.served]
        for late in due:
            late()
        return reply

    def others_act(self) -> bool:
        """Let the holder that a waiter waits for do something; False when it has nothing to do."""
        return self.do(self.rivals)

    def do(self, actions: deque[Callable[[], object]]) -> bool:
        """Do the first of these, if there is one."""
        if not actions:
            return False
        actions.popleft()()
        return True

    def move(self) -> None:
        """Let the second server of the cluster own all slots from now on."""
        self.servers[6379].moved = "0 model:6380"

    @property
    def faults(self) -> set[Fault]:
        """What has gone wrong."""
        return {fault for at, fault in self.schedule if at < len(self.steps)}


class ModelConnection:
    """A socket to a model server; both drivers' connections are made of it."""

    def __init__(self, world: World, port: int) -> None:
        self.world, self.port, self.server = world, port, world.servers[port]
        self.is_connected = False
        self.answers: deque[Any] = deque()
        self.messages: deque[list[Any]] = deque()
        self.unread = 0
        self.channels: set[bytes] = set()
        self.arrived: Callable[[], None] = lambda: None
        world.connections.append(self)

    # the server's side

    def hear(self, message: list[Any]) -> None:
        """Receive a message of a channel."""
        self.messages.append(message)
        self.arrived()

    def end(self) -> None:
        """The server has closed it."""
        self.ended = True
        for channel in self.channels:
            self.server.listeners[channel].discard(self)
        self.arrived()

    ended = False
    limit = TIMEOUT

    # ours

    @property
    def _sock(self) -> ModelConnection | None:
        """What redis-py has while it is connected."""
        return self if self.is_connected else None

    def settimeout(self, seconds: float) -> None:
        """Wait so long for the next answer."""
        self.limit = seconds

    def open(self) -> None:
        """Connect."""
        self.is_connected, self.ended, self.unread, self.limit = True, False, 0, TIMEOUT
        self.answers.clear()
        self.messages.clear()

    def shut(self) -> None:
        """Close."""
        self.is_connected = False
        self.end()
        self.channels.clear()

    def transmit(self, packet: bytes, fault: Fault | None) -> None:
        """Send requests, of which `fault` may befall the first."""
        if not self.is_connected or self.ended or fault is Fault.CLOSED:
            self.end()
            raise RedisConnectionError("closed")
        if self.unread and not self.channels:
            self.world.violations.append("a socket with an unread answer was used again")
        for request in parsed(packet):
            self.unread += 1
            if fault is Fault.LATE_REQUEST:
                self.world.late.append(partial(self._served, request))
            elif fault is Fault.OVERTAKEN:
                self.world.overtaken.append((self.world.served + 2, partial(self._served, request)))
            elif fault is Fault.LATE_ANSWER:
                reply = self.world.serve(partial(self._served, request))
                self.world.late.append(partial(self.answers.append, reply))
            elif fault is Fault.READ_ONLY:
                self.answers.append(ReadOnlyError("You can't write against a read only replica."))
            elif fault is not Fault.LOST_REQUEST:
                reply = self.world.serve(partial(self._served, request))
                if fault is not Fault.LOST_ANSWER:
                    self.answers.append(reply)

    def _served(self, request: list[bytes]) -> Any:
        if request[0].endswith(b"SUBSCRIBE"):
            return self._subscribed(*request)
        try:
            return self.server.execute(*request)
        except RedisError as error:
            return error

    def _subscribed(self, verb: bytes, channel: bytes) -> Any:
        if self.server.is_deaf and channel.startswith(b"redisson"):
            return NoPermissionError("this user may not use that channel")
        if b"UN" in verb:
            self.channels.discard(channel)
            self.server.listeners[channel].discard(self)
        elif self.is_connected:  # a request of a closed socket may be served, but has no reader
            self.channels.add(channel)
            self.server.listeners[channel].add(self)
        self.arrived()
        return [verb.lower(), channel, 1]

    def taken(self) -> Any:
        """Return what lies ready: an answer, a message, or NOTHING."""
        if self.ended or not self.is_connected:
            raise RedisConnectionError("Connection closed by server.")
        if self.answers:
            self.unread -= 1
            return self.answers.popleft()
        return self.messages.popleft() if self.messages else NOTHING


def _raised(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply


class ThreadConnection(ModelConnection):
    """As redis-py's connections for threads."""

    retry = socket_timeout = socket_connect_timeout = None

    def connect(self) -> None:
        """Open it."""
        self._do("connect", lambda fault: self.open())

    def disconnect(self) -> None:
        """Close it."""
        self.shut()

    def send_packed_command(self, packet: Any, check_health: bool = True) -> None:
        """Send requests."""
        data = packet if isinstance(packet, bytes) else b"".join(packet)
        self._do("send", lambda fault: self.transmit(data, fault))

    def read_response(self, **options: Any) -> Any:
        """Wait for an answer or a message."""
        return self._do("read", lambda fault: self._read())

    def _read(self) -> Any:
        while (reply := self.taken()) is NOTHING:
            if not (self.channels and not self.unread and self.world.others_act()):
                self.world.clock.sleep(self.limit)
                raise RedisTimeoutError("no answer")
        return _raised(reply)

    def _do(self, name: str, action: Callable[[Fault | None], Any]) -> Any:
        fault = self.world.step(name)
        if fault is Fault.INTERRUPTED_BEFORE:
            raise Cancelled
        if fault is Fault.CLOSED and name != "send":
            self.end()
            raise RedisConnectionError("closed")
        result = action(fault)
        if fault is Fault.INTERRUPTED_AFTER:
            raise Cancelled
        return result


class TaskConnection(ModelConnection):
    """As redis-py's connections for asyncio."""

    async def connect(self) -> None:
        """Open it."""
        await self._do("connect", self._opened)

    async def _opened(self, fault: Fault | None) -> None:
        self.open()

    async def disconnect(self, nowait: bool = False) -> None:
        """Close it."""
        self.shut()

    async def send_packed_command(self, packet: bytes, check_health: bool = True) -> None:
        """Send requests."""

        async def send(fault: Fault | None) -> None:
            self.transmit(packet, fault)

        await self._do("send", send)

    async def send_command(self, *parts: str, check_health: bool = True) -> None:
        """Send one request."""
        await self.send_packed_command(command(*parts).by_digest)

    async def read_response(self, *, timeout: float | None = None, **options: Any) -> Any:
        """Wait for an answer or a message; bounded by anyone who waits."""
        if timeout == math.inf:  # the reader of the loop: not a step of any verb
            return await self._read(None)
        return await self._do("read", self._read)

    async def _read(self, fault: Fault | None) -> Any:
        while (reply := self.taken()) is NOTHING:
            arrived = asyncio.get_running_loop().create_future()
            self.arrived = lambda: arrived.done() or arrived.set_result(None)  # type: ignore[assignment, func-returns-value]  # noqa: B023
            await arrived
        return _raised(reply)

    async def _do(self, name: str, action: Callable[[Fault | None], Any]) -> Any:
        fault = self.world.step(name)
        if fault is Fault.INTERRUPTED_BEFORE:
            await _cancelled()
        if fault is Fault.CLOSED and name != "send":
            self.end()
            raise RedisConnectionError("closed")
        result = await action(fault)
        if fault is Fault.INTERRUPTED_AFTER:
            await _cancelled()
        return result


async def _cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


class TurnedSelector(selectors.SelectSelector):
    """Instead of sleeping, lets the others act, or the clock pass."""

    world: World

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready, after no time at all."""
        if timeout != 0 and not self.world.others_act():
            if timeout is None:
                raise Violation("a task waits for nothing")
            self.world.clock.sleep(timeout + 1e-6)
        return super().select(0)


class TurnedLoop(asyncio.SelectorEventLoop):
    """An event loop on the world's clock."""

    world: World

    def time(self) -> float:
        """The world's time."""
        return self.world.clock.now


class Case(NamedTuple):
    """What is explored: a verb on a kind of lock, in some neighborhood."""

    name: str
    get: Callable[..., Any]
    kind: str
    body: str = "acquire, extend, release"
    neighbor: str = ""
    ack: bool = False
    cluster: str = ""


KINDS: dict[str, Callable[..., Any]] = {
    "lock": get_lock,
    "read": get_read_lock,
    "write": get_write_lock,
    "semaphore": lambda name, **options: get_semaphore(name, 1, **options),
    "fair": get_fair_lock,
}
LISTED: dict[str, Callable[[str, str], bytes]] = {
    "lock": lambda key, owner: f"L{key}".encode(),
    "read": lambda key, owner: f"R{owner} {key}".encode(),
    "write": lambda key, owner: f"W{key}".encode(),
    "semaphore": lambda key, owner: f"S{owner} {key}".encode(),
    "fair": lambda key, owner: f"F{key}".encode(),
}
"""The member of the index under which a hold is listed; by the name of its kind."""
SEVERAL: dict[str, dict[str, Any]] = {
    "replica acknowledges": {"ack": True},
    "no replica acknowledges": {"ack": True, "neighbor": "no replica"},
    "cluster moved": {"cluster": "moved"},
    "cluster asks": {"cluster": "asks"},
}
"""Where several servers have a say; Redlock's are in `test_answers`."""
CASES = [
    *(Case(f"{kind}, free", get, kind) for kind, get in KINDS.items()),
    *(Case(f"{kind}, waits", get, kind, neighbor="releases") for kind, get in KINDS.items()),
    *(Case(f"{kind}, in vain", get, kind, neighbor="stays") for kind, get in KINDS.items()),
    Case("lock, behind Java", get_lock, "lock", neighbor="java"),
    *(Case(f"{kind}, waits again", get, kind, neighbor="dies once") for kind, get in KINDS.items()),
    Case("lock, behind Java again", get_lock, "lock", neighbor="java dies once"),
    Case("lock, behind Java unheard", get_lock, "lock", neighbor="java unheard"),
    Case("lock, renewed", get_lock, "lock", body="acquire, renew, release"),
    Case("lock, renewed beside another", get_lock, "lock", body="acquire, renew two, release"),
    Case("lock, released again", get_lock, "lock", body="acquire, release, acquire, release the first"),
    *(
        Case(f"{kind}, {owner} owner", KINDS[kind], kind, body=f"acquire as {owner}, extend, release")
        for kind in KINDS
        for owner in ("given", "work's")
    ),
    *(
        Case(
            f"lock, {owner} owner, {name}", get_lock, "lock", f"acquire as {owner}, extend, release", **where
        )
        for owner in ("new", "given", "work's")
        for name, where in SEVERAL.items()
    ),
    Case("cluster, asks in vain", get_lock, "lock", cluster="refuses"),
    Case("cluster, waits", get_lock, "lock", cluster="moved", neighbor="releases"),
    Case("cluster, fails over", get_lock, "lock", cluster="moves"),
    Case("cluster, moves", get_lock, "lock", body="acquire, move, release", cluster="moves"),
    Case("lock, extended while renewed", get_lock, "lock", body="acquire, extend while renewing, release"),
    *(Case(f"{kind}, free once given up", get, kind, neighbor="stays, ends") for kind, get in KINDS.items()),
    Case("lock, granted while given up", get_lock, "lock", neighbor="stays, releases"),
]


class Explorer:
    """Runs schedules of one case on one driver."""

    def __init__(self, case: Case, driver: str, patch: pytest.MonkeyPatch) -> None:
        self.case, self.driver, self.explored = case, driver, 0
        self._loop = TurnedLoop(TurnedSelector()) if driver == "asyncio" else None
        self.world = World()
        self._patch(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("locking.utils.clock._read", lambda: self.world.clock.now)
        patch.setattr(
            "locking.backends.redis.redisson_kinds.time", SimpleNamespace(time=lambda: self.world.clock.now)
        )
        patch.setattr(ThreadServer, "sleep", lambda server, seconds: self._slept(seconds))
        patch.setattr(async_transport, "connection_like", lambda pool: TaskConnection(self.world, pool.port))
        patch.setattr("locking.core.lock.watchdogs", SimpleNamespace(watch=lambda lease: None))
        patch.setattr("locking.core.pending_release.release_retrier.schedule", self._pend)
        patch.setattr(
            "locking.backends.redis.backend.servers_of", lambda _: model_servers(self.world, self.case)
        )
        clean_up = SingleLock._clean_up_after

        def given_up(lock: SingleLock, *args: Any) -> None:  # after the last answer, before the waiter leaves
            self.world.do(self.world.giving_up)
            clean_up(lock, *args)

        patch.setattr(SingleLock, "_clean_up_after", given_up)

    def _servers_of(self, settings: Any) -> Servers:
        return model_servers(self.world, self.case)

    async def _slept(self, seconds: float) -> None:
        if not self.world.others_act():
            self.world.clock.sleep(seconds)

    def _pend(self, backend: Any, key: str, owner: str, ttl: float) -> None:
        self.world.pending.append((backend, key, owner))

    def close(self) -> None:
        """End the loop."""
        if self._loop is not None:
            self._loop.close()

    def _end_tasks(self) -> None:
        """Do what `asyncio.run` does at its end."""
        if self._loop is not None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))

    # one schedule

    def run(self, schedule: Schedule) -> World:
        """Carry out a schedule, let the world settle, and check it."""
        self.world = world = World(schedule)
        self.explored += 1
        if self._loop is not None:
            self._loop.world = self._loop._selector.world = world  # type: ignore[attr-defined]
        backend: Any = locks["default"]
        RedisBackend.__init__(backend, backend.settings)  # as new, on this world's servers
        breaker.reset()  # which schedule came before makes no difference
        self._set_the_scene(backend)
        try:
            lease, reported = self._attempt()
            world.is_quiet = True
            self._use_the_next()
            self._settle()
            self._end_tasks()
            self._check(lease, reported)
        except Violation as violation:
            raise Violation(f"{self.case.name}, {self.driver}: {violation}\n{self.reported(world)}") from None
        HOLDS.clear()
        return world

    def _set_the_scene(self, backend: Any) -> None:
        """Put the neighbors where they are; nothing of it is a step."""
        case, world = self.case, self.world
        if case.cluster:
            world.server = world.servers[6380]
            if case.cluster == "moves":
                world.servers[6379].share(world.server)
            elif case.cluster == "moved":
                world.move()
            else:
                world.servers[6379].asks = "0 model:6380"
        world.server.replicas = 0 if case.neighbor == "no replica" else int(case.ack)
        world.server.execute(b"HSET", b"bystander", BYSTANDER.encode(), b"1")
        world.server.refuses = case.cluster == "refuses"
        if case.neighbor.startswith("java"):
            world.server.execute(b"HSET", KEY.encode(), JAVA.encode(), b"1")
            world.rivals += [lambda: None, self._java_releases]
            world.server.is_deaf = "unheard" in case.neighbor
        elif "given" in case.body:
            kind = backend.kind if case.kind == "lock" else backend.variant(case.kind).kind
            self._served(kind.acquire(KEY, GIVEN, RIVAL_TTL, keep=False, queue=False))
        elif case.neighbor in ("releases", "dies once", *STAYING):
            kind = backend.kind if case.kind == "lock" else backend.variant(case.kind).kind
            rival = kind if case.kind != "read" else backend.variant("write").kind
            self._served(rival.acquire(KEY, RIVAL, RIVAL_TTL, keep=False, queue=False))
            then = {"stays": deque(), "stays, ends": world.ending, "stays, releases": world.giving_up}
            acting = then.get(case.neighbor, world.rivals)
            acting += [lambda: None] * (acting is world.rivals)
            acting.append(lambda: self._served(rival.release(KEY, RIVAL)))

    def _java_releases(self) -> None:
        self.world.server.execute(b"DEL", KEY.encode())
        self.world.server.execute(b"PUBLISH", b"redisson_lock__channel:{a}", b"0")

    def _served(self, request: Any) -> Any:
        return self.world.server.execute(*parsed(request.by_source)[0])

    def _attempt(self) -> tuple[Any, str]:
        """Return the lease, if one was given, and what its user heard about its end."""
        if "dies once" in self.case.neighbor:
            self._wait_in_vain()
        wait = 0.0 if not self.case.neighbor or self.case.neighbor == "no replica" else WAIT
        attempt: dict[str, Any] = {"lease": None, "reported": ""}
        lock = self.case.get(KEY, ttl=TTL, wait=wait)
        if "given" in self.case.body:
            lock.act_as(GIVEN)
        elif "work's" in self.case.body:
            lock.act_for(client_of_work("work"))
        self._used(lock, attempt)
        return attempt["lease"], attempt["reported"]

    def _used(self, lock: Any, attempt: dict[str, Any]) -> None:
        try:
            if self._loop is not None:
                self._loop.run_until_complete(_use_in_task(self, lock, attempt))
            else:
                _use(self, lock, attempt)
        except (LockError, Cancelled, asyncio.CancelledError) as error:
            attempt["reported"] = attempt["reported"] or type(error).__name__

    def _wait_in_vain(self) -> None:
        """Leave an idle subscription behind, and have the server close it."""
        world = self.world
        rivals, world.rivals, world.is_quiet = world.rivals, deque(), True
        self._used(self.case.get(KEY, ttl=TTL, wait=1.0), {"lease": None, "reported": ""})
        for connection in [each for each in world.connections if each.channels]:
            connection.end()
        world.rivals, world.is_quiet = rivals, False

    def granted(self, lease: Any) -> None:
        """Check a lease at the moment at which its user gets it."""
        single = lease.leases[0]
        if lease.remaining() <= 0 or self.world.faults & {Fault.FORGOTTEN, Fault.CLOCK}:
            return
        if lease.name == KEY and not self._has_minted(single):
            raise Violation(f"the server never minted the token {single.token}")
        if lease.name == KEY and single.owner not in self.holders():
            raise Violation("the user holds what the server has not granted")

    def still_held(self, lease: Any) -> None:
        """Check that the server keeps a lease for as long as its user counts on it."""
        if lease.name != KEY or lease.remaining() <= 0 or Fault.FORGOTTEN in self.world.faults:
            return
        if lease.owner not in self.holders():
            raise Violation("what the user counts on, the server has released")
        left = self.world.server.do_pttl(KEY.encode()) / 1000
        if self.case.kind in ("lock", "write", "fair") and lease.remaining() > left + MILLISECOND:
            raise Violation(f"the user counts on {lease.remaining():g} s, the server on {left:g} s")

    def _has_minted(self, lease: Any) -> bool:
        """Whether the token was minted by the server, for this holder's entry in the index."""
        return lease.token in self.world.server.minted[LISTED[self.case.kind](lease.key, lease.owner)]

    def holders(self) -> set[str]:
        """The holder of the lock on the server."""
        server = self.world.server
        if self.case.kind == "semaphore":
            if not server.do_exists(b"{a}:timeout"):
                return set()
            now = server._ms()
            return {who.decode() for who, end in server.values[b"{a}:timeout"].items() if end > now}
        if not server.do_exists(b"a"):
            return set()
        return {who.decode().removesuffix(":write") for who in server.values[b"a"] if who != b"mode"}

    def _use_the_next(self) -> None:
        """Take another name over the same sockets: nothing that was left on them may be read."""
        self.world.rivals.clear()
        attempt: dict[str, Any] = {"lease": None, "reported": ""}
        self._used(self.case.get("next", ttl=TTL, wait=0.0), attempt)
        lease = attempt["lease"]
        if lease is not None and not self._has_minted(lease.leases[0]):
            self.world.violations.append("the next holder was granted by what was left on a socket")

    def _settle(self) -> None:
        """Let late requests arrive and carry out what is pending, as the thread for it would."""
        self.world.do(self.world.ending)
        for late in [late for _, late in self.world.overtaken] + self.world.late:
            late()
        for owner_backend, key, owner in self.world.pending:
            with contextlib.suppress(LockError):
                owner_backend.release(key, owner)

    def _check(self, lease: Any, reported: str) -> None:
        world = self.world
        problems = [*world.violations, *self._untruths(lease, reported)]
        ours = self.holders() - {RIVAL, JAVA, GIVEN}
        if "given" in self.case.body and lease is None and not self._has_the_given_hold():
            problems.append("the hold from before the attempt was released")
        if lease is None and ours:
            problems.append(f"{reported}: granted, not reported, and not released")
        if reported == "released" and ours:
            problems.append("what was released is held again")
        forgotten = Fault.FORGOTTEN in world.faults
        if not forgotten and world.server.values.get(b"bystander") != {BYSTANDER.encode(): b"1"}:
            problems.append("the lease of another name was touched")
        in_time = world.clock.now < Clock().now + RIVAL_TTL
        if self.case.neighbor == "stays" and in_time and not forgotten and RIVAL not in self.holders():
            problems.append("the holder has lost its lock")
        if self._is_heard_in_the_queue():
            problems.append("a waiter that is gone still stands in the queue, and is listened for")
        if world.clock.now - Clock().now > WAIT + TTL + (1 + len(world.schedule)) * 60.0:
            problems.append("it took longer than any wait and any time-out")
        if problems:
            raise Violation("; ".join(problems))

    def _untruths(self, lease: Any, reported: str) -> Iterator[str]:
        """Yield what the user heard about the end that isn't so."""
        world = self.world
        if not world.schedule and reported != self._expected():
            yield f"without any fault it ended by {reported}"
        if reported == "LockLost" and Fault.FORGOTTEN not in world.faults and self._is_young(lease):
            yield "a lease that nothing has ended was called lost"
        if reported == "BackendError" != self._expected() and world.faults == {Fault.READ_ONLY}:
            yield "a replica that was a master counts as one that refuses, and not as an outage"

    def _is_young(self, lease: Any) -> bool:
        return bool(self.world.clock.now < lease.leases[0].taken_at + SHORT_TTL)

    def _has_the_given_hold(self) -> bool:
        """Whether the given owner's hold is there, or had to end."""
        is_over = self.world.clock.now >= Clock().now + TTL
        return is_over or Fault.FORGOTTEN in self.world.faults or GIVEN in self.holders()

    def _expected(self) -> str:
        endings = {
            **dict.fromkeys(STAYING, "LockNotAcquired"),
            "no replica": "NotReplicated",
            "java unheard": "BackendError",
        }
        usual = "BackendError" if self.case.cluster == "refuses" else "released"
        return endings.get(self.case.neighbor, usual)

    def _is_heard_in_the_queue(self) -> bool:
        listened = {channel for channel, who in self.world.server.listeners.items() if who}
        queue = self.world.server.values.get(b"holdfast_lock_queue:{a}", [])
        return any(place.split(b" ")[3] in listened for place in queue)

    def reported(self, world: World) -> str:
        """The schedule in words."""
        faults = dict(world.schedule)
        return "\n".join(f"{i:3} {step}  {faults.get(i, '')}" for i, step in enumerate(world.steps))

    # many schedules

    def schedules(self, before: Schedule, world: World, second: Collection[Fault]) -> Iterator[Schedule]:
        """Yield `before` with one more fault, at each later step of how it went."""
        start = before[-1][0] + 1 if before else 0
        for at in range(start, len(world.steps)):
            for fault in FAULTS[world.steps[at]]:
                if not before or fault in second:
                    yield (*before, (at, fault))

    def explore(
        self, depth: int, before: Schedule = (), second: Collection[Fault] = frozenset(Fault)
    ) -> None:
        """Run all schedules of `before` and up to `depth` faults; those behind the first are of `second`."""
        world = self.run(before)
        if depth > len(before):
            for schedule in self.schedules(before, world, second):
                self.explore(depth, schedule, second)


def _use(explorer: Explorer, lock: Any, attempt: dict[str, Any]) -> None:
    if "release the first" in explorer.case.body:
        _release_first(explorer, lock)
    lease = attempt["lease"] = lock.acquire()
    explorer.granted(lease)
    if "extend while" in explorer.case.body:
        _extend_while_renewing(explorer, lease)
    elif "renew" in explorer.case.body:
        _renew(explorer, lease)
    else:
        lease.extend(TTL)
    explorer.still_held(lease)
    if "move" in explorer.case.body:
        explorer.world.move()
    lease.release()
    attempt["reported"] = "released"


def _release_first(explorer: Explorer, lock: Any) -> None:
    """Retry a release after the thread has acquired again."""
    first = lock.acquire()
    try:
        _release_or_pend(explorer, first)
        second = lock.acquire()
    finally:
        _release_or_pend(explorer, first)
    mine = held_by(current_context(), second.backend.alias, second.key)
    if second.remaining() > 0 and mine is not second:
        raise Violation("releasing an old lease again unregistered the newer one")
    _release_or_pend(explorer, second)


def _release_or_pend(explorer: Explorer, lease: Any) -> None:
    try:
        lease.release()
    except (LockError, Cancelled):
        explorer.world.pending.append((lease.backend, lease.key, lease.owner))


def _extend_while_renewing(explorer: Explorer, lease: Any) -> None:
    """Have the server serve a renewal, then a shorter extension, whose answer is read first."""
    backend = lease.backend
    extend_many = backend.extend_many

    def overtaken(leases: Any) -> list[bool | None]:
        answers: list[bool | None] = extend_many(leases)
        lease.extend(SHORT_TTL)
        return answers

    lease.renewed = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "extend_many", overtaken)
        renew([lease])


def _renew(explorer: Explorer, lease: Any) -> None:
    """Do what the watchdog does; another lease's key may have been overwritten by a program that uses it."""
    renewed = list(lease.leases)
    if "two" in explorer.case.body:
        renewed += get_lock("overwritten", ttl=TTL).acquire().leases
        explorer.world.server.execute(b"SET", b"overwritten", b"no lock")
    for single in renewed:
        single.renewed = True
    renew(renewed)
    faults = explorer.world.faults
    if lease.state is not State.HELD and not faults:
        raise Violation("the trouble of one lease became that of another")


async def _use_in_task(explorer: Explorer, lock: Any, attempt: dict[str, Any]) -> None:
    lease = attempt["lease"] = await lock.aacquire()
    explorer.granted(lease)
    await lease.aextend(TTL)
    explorer.still_held(lease)
    if "move" in explorer.case.body:
        explorer.world.move()
    await lease.arelease()
    attempt["reported"] = "released"


def model_servers(
    world: World, case: Case, port: int = 6379, connect: type[ThreadConnection] = ThreadConnection
) -> Servers:
    """Return the product's own servers, on connections to the model."""

    def pool(address: Address) -> Any:
        return SimpleNamespace(
            connection_class=lambda: connect(world, address.port), connection_kwargs={}, port=address.port
        )

    home, index = Address("model", port), Index("")
    ack = ReplicaAck(1 if case.neighbor else "auto", 100) if case.ack else None
    terms = Terms("default", index, ack, has_failover=bool(case.cluster))
    if case.cluster:
        slots = SlotMap([home])
        slots.learn([[0, 16383, [b"model", port]]], home)
        return Servers(
            Cluster(terms, slots, lambda address: ThreadServer(terms, pool(address))),
            EventLoops(lambda: Cluster(terms, slots, lambda address: AsyncServer(terms, pool(address)))),
        )
    return Servers(ThreadServer(terms, pool(home)), EventLoops(lambda: AsyncServer(terms, pool(home))))
