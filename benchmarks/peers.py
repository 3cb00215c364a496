"""Every lock that is measured, behind one adapter of a few lines: hold the lock of a name while `body` runs.

A package is imported only when it is opened, so one that isn't installed is left out, with the reason.
"""

from __future__ import annotations

import itertools
import socket
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.django_setup import configure_django

Body = Callable[[], object]
Section = Callable[[str, Body], object]
"""Runs the body while holding the lock of the name."""

LONG = 60.0
"""Seconds that a waiter is willing to wait: longer than anything here lasts."""

OWN_ROOM = Path(sys.prefix) / "peers"
"""Where redis-lock-py is installed, whose package is called as python-redis-lock's is."""

COMPARE_AND_DELETE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


@dataclass(frozen=True)
class Peer:
    """A lock to measure.

    Attributes:
        name: what the tables call it.
        open: gives the section of a process, from the server's URL and the lease in seconds.
        package: the distribution whose version is noted; None for what is written here.
        alone: whether it is measured without contention.
        waits: whether it is measured with contention.
        crashes: whether it is measured with holders and waiters that die.
        token: whether a token must lie at the name before anyone can take it (the baton).
    """

    name: str
    open: Callable[[str, float], Section]
    package: str | None = None
    alone: bool = True
    waits: bool = True
    crashes: bool = True
    token: bool = False

    def version(self) -> str | None:
        """Return the installed version of its package."""
        if self.package is None:
            return None
        if self.package == "redis-lock-py":
            return _own_room_version()
        return "this checkout" if self.package == "django-holdfast" else version(self.package)


def missing(peer: Peer, url: str) -> str | None:
    """Return why `peer` can't be measured here, or None when it can; a fault of our own is raised."""
    try:
        peer.open(url, 30.0)
        peer.version()
    except (ImportError, PackageNotFoundError) as error:
        if peer.package == "django-holdfast":
            raise
        return f"not installed: {error}; see requirements-bench.txt"
    return None


def _own_room_version() -> str:
    for found in distributions(path=[str(OWN_ROOM)]):
        return found.version
    raise PackageNotFoundError("redis-lock-py")


def plain_client(url: str) -> Redis:
    """Return a client as redis-py makes it, with its time limit on replies."""
    return Redis.from_url(url)


def patient_client(url: str) -> Redis:
    """Return a client without that limit, for peers whose BLPOP would run into it; it costs a little less."""
    return Redis.from_url(url, socket_timeout=None)


_numbers = itertools.count()
_client_id = uuid.uuid4().hex


def new_owner() -> bytes:
    """Return a value that no other client sets."""
    return b"%b:%d" % (_client_id.encode(), next(_numbers))


# --- what bounds the figures -------------------------------------------------------------------------------


def floor(url: str, ttl: float) -> Section:
    """What everyone writes first, in plain redis-py: SET NX PX, asked for again every millisecond."""
    client, ms = plain_client(url), int(ttl * 1000)
    digest = str(client.script_load(COMPARE_AND_DELETE))

    def section(name: str, body: Body) -> None:
        owner = new_owner()
        while not client.set(name, owner, nx=True, px=ms):
            time.sleep(0.001)
        body()
        client.evalsha(digest, 1, name, owner)

    return section


def _bulk(*parts: bytes) -> bytes:
    return b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class Packed:
    """The floor's two commands with all that never changes packed once."""

    def __init__(self, client: Redis, ttl: float) -> None:
        digest = str(client.script_load(COMPARE_AND_DELETE)).encode()
        self._acquire = b"*6\r\n" + _bulk(b"SET")
        self._options = _bulk(b"NX", b"PX", b"%d" % int(ttl * 1000))
        self._release = b"*5\r\n" + _bulk(b"EVALSHA", digest, b"1")

    def acquire(self, name: bytes, owner: bytes) -> bytes:
        """Return SET … NX PX …"""
        return self._acquire + _bulk(name, owner) + self._options

    def release(self, name: bytes, owner: bytes) -> bytes:
        """Return EVALSHA …"""
        return self._release + _bulk(name, owner)


def packed_on_pool(url: str, ttl: float) -> Section:
    """Packed commands, on a connection that redis-py's pool hands out for each."""
    client = plain_client(url)
    packed, pool = Packed(client, ttl), client.connection_pool

    def exchange(request: bytes) -> None:
        connection = pool.get_connection()
        try:
            connection.send_packed_command((request,))
            connection.read_response()
        finally:
            pool.release(connection)

    def section(name: str, body: Body) -> None:
        key, owner = name.encode(), new_owner()
        exchange(packed.acquire(key, owner))
        body()
        exchange(packed.release(key, owner))

    return section


def bare_socket(url: str, ttl: float) -> Section:
    """Packed commands on a socket: what Redis and the kernel take, and Python at its least."""
    client = plain_client(url)
    address = client.connection_pool.connection_kwargs
    packed = Packed(client, ttl)
    wire = socket.create_connection((address["host"], address["port"]))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def section(name: str, body: Body) -> None:
        key, owner = name.encode(), new_owner()
        wire.sendall(packed.acquire(key, owner))
        wire.recv(64)
        body()
        wire.sendall(packed.release(key, owner))
        wire.recv(64)

    return section


def baton(url: str, ttl: float) -> Section:
    """One token in a list, handed from worker to worker by Redis itself: no lock, the physical handoff."""
    client = patient_client(url)

    def section(name: str, body: Body) -> None:
        client.blpop([name], 0)
        body()
        client.lpush(name, "token")

    return section


# --- the field ---------------------------------------------------------------------------------------------


def redis_py(url: str, ttl: float) -> Section:
    """`redis.lock.Lock`."""
    client = plain_client(url)

    def section(name: str, body: Body) -> None:
        with client.lock(name, timeout=ttl):
            body()

    return section


def django_redis(url: str, ttl: float) -> Section:
    """`cache.lock`."""
    configure_django(url)
    cache: Any = import_module("django.core.cache").cache
    cache.client.get_client(write=True)

    def section(name: str, body: Body) -> None:
        with cache.lock(name, timeout=ttl):
            body()

    return section


def _python_redis_lock(url: str, ttl: float, renewal: bool) -> Section:
    client, package = patient_client(url), import_module("redis_lock")

    def section(name: str, body: Body) -> None:
        with package.Lock(client, name, expire=int(ttl), auto_renewal=renewal):
            body()

    return section


def python_redis_lock(url: str, ttl: float) -> Section:
    """`redis_lock.Lock`."""
    return _python_redis_lock(url, ttl, renewal=False)


def python_redis_lock_renewed(url: str, ttl: float) -> Section:
    """`redis_lock.Lock(auto_renewal=True)`: a thread a lock."""
    return _python_redis_lock(url, ttl, renewal=True)


def redis_lock_py(url: str, ttl: float) -> Section:
    """`redis_lock.RedisLock` of redis-lock-py, under another name, because two packages claim that one."""
    client, package = plain_client(url), _from_own_room("redis_lock", "redis_lock_py")

    def section(name: str, body: Body) -> None:
        with package.RedisLock(client, name, blocking_timeout=LONG, expire_timeout=int(ttl)):
            body()

    return section


def _from_own_room(package: str, alias: str) -> Any:
    place = OWN_ROOM / package / "__init__.py"
    if not place.exists():
        raise ImportError(f"redis-lock-py isn't in {OWN_ROOM.name}/: see requirements-bench.txt")
    # The package imports itself by its own name, which must mean this one while it is loaded.
    others = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}
    sys.path.insert(0, str(OWN_ROOM))
    try:
        return import_module(package)
    finally:
        sys.path.remove(str(OWN_ROOM))
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            sys.modules[name.replace(package, alias, 1)] = sys.modules.pop(name)
        sys.modules.update(others)


def sherlock(url: str, ttl: float) -> Section:
    """`sherlock.RedisLock`."""
    client, package = plain_client(url), import_module("sherlock")

    def section(name: str, body: Body) -> None:
        with package.RedisLock(name, client=client, expire=int(ttl), timeout=LONG):
            body()

    return section


def walrus(url: str, ttl: float) -> Section:
    """`walrus.Database.lock`."""
    database, ms = import_module("walrus").Database.from_url(url, socket_timeout=None), int(ttl * 1000)

    def section(name: str, body: Body) -> None:
        with database.lock(name, ttl=ms):
            body()

    return section


def pottery(url: str, ttl: float) -> Section:
    """`pottery.Redlock` on its one server."""
    masters, package = {plain_client(url)}, import_module("pottery")

    def section(name: str, body: Body) -> None:
        with package.Redlock(key=name, masters=masters, auto_release_time=ttl):
            body()

    return section


# --- this project ------------------------------------------------------------------------------------------


def _holdfast(url: str, **options: Any) -> Section:
    configure_django(url)
    get_lock = import_module("locking").get_lock

    def section(name: str, body: Body) -> None:
        with get_lock(name, wait=LONG, **options):
            body()

    return section


def holdfast(url: str, ttl: float) -> Section:
    """`get_lock(ttl=…)`."""
    return _holdfast(url, ttl=ttl)


def holdfast_watched(url: str, ttl: float) -> Section:
    """`get_lock()`: kept alive by the watchdog."""
    return _holdfast(url)


def holdfast_fenced(url: str, ttl: float) -> Section:
    """`get_lock(fenced=True)`."""
    return _holdfast(url, ttl=ttl, fenced=True)


def holdfast_decorator(url: str, ttl: float) -> Section:
    """`@distributed_lock`, without its transaction: there is no database here."""
    configure_django(url)
    distributed_lock = import_module("locking").distributed_lock

    @distributed_lock(key="<name>", ttl=ttl, wait=LONG, atomic=False)  # type: ignore[untyped-decorator]
    def section(name: str, body: Body) -> None:
        body()

    return section  # type: ignore[no-any-return]


FLOOR, BATON = "floor", "baton"
JUDGED = "holdfast, watchdog"
"""The variant that the targets are about: nothing left out."""

PEERS = (
    Peer(FLOOR, floor, "redis"),
    Peer(BATON, baton, "redis", alone=False, crashes=False, token=True),
    Peer("bare socket", bare_socket, waits=False, crashes=False),
    Peer("packed, pool connection", packed_on_pool, "redis", waits=False, crashes=False),
    Peer("redis-py", redis_py, "redis"),
    Peer("django-redis", django_redis, "django-redis"),
    Peer("python-redis-lock", python_redis_lock, "python-redis-lock"),
    Peer("python-redis-lock, renewal", python_redis_lock_renewed, "python-redis-lock"),
    Peer("redis-lock-py", redis_lock_py, "redis-lock-py"),
    Peer("sherlock", sherlock, "sherlock"),
    Peer("walrus", walrus, "walrus"),
    Peer("pottery", pottery, "pottery"),
    Peer("holdfast", holdfast, "django-holdfast"),
    Peer(JUDGED, holdfast_watched, "django-holdfast", crashes=False),
    Peer("holdfast, fenced", holdfast_fenced, "django-holdfast", waits=False, crashes=False),
    Peer("holdfast, @distributed_lock", holdfast_decorator, "django-holdfast", waits=False, crashes=False),
)
BY_NAME = {peer.name: peer for peer in PEERS}
