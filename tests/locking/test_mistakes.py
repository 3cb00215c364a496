"""Every wrong turn has its text, at the earliest moment: a table *mistake, moment, text*."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import re
import socket
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.http import HttpRequest
from django.test import RequestFactory, override_settings

from locking import (
    BackendUnavailable,
    LockExpired,
    LockKeyError,
    LockLost,
    LockNotAcquired,
    TooManyWaiters,
    conflict_response,
    distributed_lock,
    get_lock,
    live_checks,
)
from locking.backends.base import Heartbeat
from locking.checks import check_setting
from locking.core import handler
from locking.core.handler import InvalidLockBackend, locks
from locking.core.waits import description
from locking.liveness import SETTING
from locking.transactions.decorator import DECORATED
from tests.locking.support.helpers import elsewhere
from tests.private_redis import private_redis
from tests.support.processes import until

BACKENDS = "locking.backends"
REDIS = f"{BACKENDS}.redis.RedisBackend"
ROWS = f"{BACKENDS}.database.RowLockBackend"
MEMORY = f"{BACKENDS}.memory.MemoryBackend"
ETCD = f"{BACKENDS}.etcd.EtcdBackend"
ZOOKEEPER = f"{BACKENDS}.zookeeper.ZooKeeperBackend"
REDLOCK = f"{BACKENDS}.redlock.RedlockBackend"
URL = "redis://localhost:6379/0"
THREE = [f"redis://{host}" for host in "abc"]


class Mistake(NamedTuple):
    """Mistakes in `LOCKING`, and their messages."""

    setting: Any
    text: str


def alias(entry: Any) -> dict[str, Any]:
    """Return a setting with this entry."""
    return {"default": entry}


def backend(path: Any) -> dict[str, Any]:
    """Return a setting whose BACKEND is this."""
    return alias({"BACKEND": path})


def key(name: Any, value: Any) -> dict[str, Any]:
    """Return a setting that is right but for this key."""
    return alias({"BACKEND": REDIS, "LOCATION": URL, name: value})


def option(name: Any, value: Any) -> dict[str, Any]:
    """Return a setting that is right but for this option."""
    return key("OPTIONS", {name: value})


def location(value: Any, path: str = REDIS, **options: Any) -> dict[str, Any]:
    """Return a setting with this LOCATION."""
    return alias({"BACKEND": path, "LOCATION": value, "OPTIONS": options})


def cache(name: Any) -> dict[str, Any]:
    """Return a setting that shares this cache."""
    return alias({"BACKEND": REDIS, "CACHE": name})


MISTAKES = [
    # the setting
    Mistake(5, "LOCKING must be a dict of aliases and their settings, not 5."),
    Mistake([], "LOCKING must be a dict of aliases and their settings, not []."),
    Mistake({1: {}}, "LOCKING must be a dict of aliases and their settings, not {1: {}}."),
    Mistake({"other": {}}, "LOCKING has no alias 'default', only 'other'."),
    Mistake(alias(5), "LOCKING['default'] must be a dict, not 5."),
    Mistake(alias(None), "LOCKING['default'] must be a dict, not None."),
    Mistake(key("ttl", 1), "LOCKING['default'] has the unknown key 'ttl'; did you mean 'TTL'?"),
    Mistake(key("LOCATON", 1), "LOCKING['default'] has the unknown key 'LOCATON'; did you mean 'LOCATION'?"),
    Mistake(key(5, 1), "LOCKING['default'] has the unknown key 5; known are BACKEND, CACHE, "),
    # BACKEND
    Mistake(backend(5), "LOCKING['default']: BACKEND must be a text, not 5 (int)."),
    Mistake(backend(None), f"LOCKING['default']: BACKEND=None must be a dotted path, such as '{REDIS}'."),
    Mistake(backend(""), "BACKEND='' must be a dotted path"),
    Mistake(backend("redis"), "BACKEND='redis' must be a dotted path"),
    Mistake(backend("no.such.Backend"), "LOCKING['default']: No module named 'no'."),
    Mistake(backend(f"{REDIS}s"), """does not define a "RedisBackends" attribute/class."""),
    Mistake(
        backend("os.path"),
        "LOCKING['default']: BACKEND='os.path' is no lock backend, but <module 'posixpath'",
    ),
    Mistake(backend("math.pi"), "BACKEND='math.pi' is no lock backend, but 3.14"),
    Mistake(
        backend("locking.get_lock"), "BACKEND='locking.get_lock' is no lock backend, but <function get_lock"
    ),
    Mistake(
        backend("django.core.cache.backends.locmem.LocMemCache"),
        "is no lock backend, but <class 'django.core.cache.backends.locmem.LocMemCache'>.",
    ),
    Mistake(
        backend(f"{BACKENDS}.base.BaseLockBackend"),
        "LOCKING['default']: Can't instantiate abstract class BaseLockBackend",
    ),
    # lengths of time
    Mistake(key("TTL", 0), "LOCKING['default']: TTL must be between 0.001 and 604800 seconds, not 0."),
    Mistake(key("TTL", "30"), "TTL must be a number of seconds or a timedelta, not '30' (str)."),
    Mistake(key("TTL", True), "TTL must be a number of seconds or a timedelta, not True (bool)."),
    Mistake(key("TTL", float("nan")), "TTL must be a finite number of seconds, not nan."),
    Mistake(key("WATCHDOG_TTL", -1), "WATCHDOG_TTL must be between 0.001 and 604800 seconds, not -1."),
    Mistake(key("WAIT", -1), "WAIT must be 0 (don't wait), positive seconds, or None (no limit), not -1."),
    Mistake(key("WAIT", "5"), "WAIT must be a number of seconds or a timedelta, not '5' (str)."),
    Mistake(key("WAIT", float("inf")), "WAIT must be a finite number of seconds, not inf."),
    Mistake(
        key("RETRY_AFTER", "x"), "RETRY_AFTER must be a number of seconds or a timedelta, not 'x' (str)."
    ),
    Mistake(key("FENCE_TIMEOUT", 0), "FENCE_TIMEOUT must be between 0.001 and 604800 seconds, not 0."),
    # the other keys
    Mistake(
        key("MAX_WAITERS", 0), "MAX_WAITERS must be a whole number above 0, or None for no limit, not 0."
    ),
    Mistake(
        key("MAX_WAITERS", 1.5), "MAX_WAITERS must be a whole number above 0, or None for no limit, not 1.5."
    ),
    Mistake(key("KEY_PREFIX", 5), "LOCKING['default']: KEY_PREFIX must be a text, not 5 (int)."),
    Mistake(key("KEY_PREFIX", b"x"), "KEY_PREFIX must be a text, not b'x' (bytes)."),
    Mistake(
        key("KEY_PREFIX", "{"), "the braces in KEY_PREFIX='{' don't pair up; leave them out or close them."
    ),
    Mistake(
        key("ON_CONFLICT", "retrie"), "ON_CONFLICT='retrie' must be one of auto, raise, skip, retry, or a"
    ),
    Mistake(key("ON_CONFLICT", "retrie"), "did you mean 'retry'?"),
    Mistake(key("ON_CONFLICT", []), "ON_CONFLICT=[] must be one of auto, raise, skip, retry, or a callable."),
    Mistake(key("ON_OPEN_TRANSACTION", "no"), "ON_OPEN_TRANSACTION='no' must be 'refuse' or 'ignore'."),
    Mistake(key("OPTIONS", None), "LOCKING['default']['OPTIONS'] must be a dict, not None."),
    Mistake(key("OPTIONS", ["a"]), "LOCKING['default']['OPTIONS'] must be a dict, not ['a']."),
    Mistake(option(5, 6), "LOCKING['default']['OPTIONS'] has the key 5, which is no text."),
    # Redis
    Mistake(location(5), "LOCKING['default']: LOCATION must be a text, or a list of texts, not int."),
    Mistake(location([5]), "LOCATION must be a text, or a list of texts, not list."),
    Mistake(
        location(""), "LOCKING['default']['LOCATION']: Redis URL must specify one of the following schemes"
    ),
    Mistake(location("localhost"), "'localhost' must be unix:///path or redis://host:6379/<number>."),
    Mistake(
        location("http://x"), "must specify one of the following schemes (redis://, rediss://, unix://)."
    ),
    Mistake(location("redis://h:port"), "['LOCATION']: Port could not be cast to integer value as 'port'."),
    Mistake(location("redis://h:99999"), "['LOCATION']: Port out of range 0-65535."),
    Mistake(
        location("redis://h/shop"), "'redis://h/shop' must be unix:///path or redis://host:6379/<number>."
    ),
    Mistake(location("redis://u:secret@h/shop"), "'redis://***@h/shop' must be"),
    Mistake(location("unix://"), "'unix://' must be unix:///path or redis://host:6379/<number>."),
    Mistake(location("sentinel+redis://h"), "names no service: sentinel+redis://host:26379/<service>."),
    Mistake(location([]), "must be a URL, or a list of URLs of a cluster's nodes, not []."),
    Mistake(
        location(["redis://a", "b"]), "['LOCATION']: Redis URL must specify one of the following schemes"
    ),
    Mistake(location("redis://h?timout=1"), "redis-py refuses OPTIONS: AbstractConnection.__init__() got an"),
    Mistake(location("redis://h?socket_timeout=x"), "Invalid value for 'socket_timeout' in connection URL."),
    Mistake(location("rediss://h?ssl_cert_reqs=maybe"), "Invalid SSL Certificate Requirements Flag: maybe."),
    Mistake(option("socket_timout", 1), "got an unexpected keyword argument 'socket_timout'."),
    Mistake(option("socket_timeout", "5"), "['OPTIONS']['socket_timeout'] must be a number, not str."),
    Mistake(option("health_check_interval", "x"), "['health_check_interval'] must be a number, not str."),
    Mistake(option("password", 5), "LOCKING['default']['OPTIONS']['password'] must be a text, not int."),
    Mistake(option("protocol", 9), "redis-py refuses OPTIONS: protocol must be either 2 or 3."),
    Mistake(option("ssl_ca_certs", "/no"), "got an unexpected keyword argument 'ssl_ca_certs'."),
    Mistake(
        option("max_connections", "x"),
        "LOCKING['default']['LOCATION']: \"max_connections\" must be a positive",
    ),
    Mistake(
        option("wait_replicas", "x"), "['wait_replicas'] must be a number of replicas or \"auto\", not 'x'."
    ),
    Mistake(cache(5), "LOCKING['default']: CACHE must be a text, not 5 (int)."),
    Mistake(cache("nope"), "LOCKING['default']: The connection 'nope' doesn't exist."),
    Mistake(
        cache("local"),
        "shares the cache 'local', which is django.core.cache.backends.locmem.LocMemCache and not",
    ),
    Mistake(key("CACHE", "default"), "LOCKING['default'] has both CACHE and LOCATION; keep one."),
    # the other engines
    Mistake(location(None, REDLOCK), "['LOCATION']: must be a list of the servers' URLs, not None."),
    Mistake(location(["redis://a"], REDLOCK), "names 1: to tolerate a failure it takes three or more."),
    Mistake(location(THREE, REDLOCK, nope=1), "got an unexpected keyword argument 'nope'."),
    Mistake(location(THREE, REDLOCK, node_timeout="x"), "['node_timeout'] must be seconds above 0"),
    Mistake(
        location("x", MEMORY), f"LOCKING['default'] has LOCATION, which {MEMORY} doesn't take; leave it out."
    ),
    Mistake(location(None, MEMORY, a=1), f"['OPTIONS'] has 'a', which {MEMORY} doesn't know; it knows none."),
    Mistake(location(None, ETCD), "LOCKING['default'] needs LOCATION, such as ['http://etcd1:2379', "),
    Mistake(location("x", ETCD), "['LOCATION'] has 'x': write http://host:2379 or https://host:2379."),
    Mistake(location("http://h", ETCD, nope=1), f"has 'nope', which {ETCD} doesn't know; it knows ca_cert, "),
    Mistake(
        location("http://h", ETCD, ca_cert="/no"), "must be a file that this process can read, not '/no'."
    ),
    Mistake(
        location(None, ZOOKEEPER), "LOCKING['default'] needs LOCATION, such as 'zk1:2181,zk2:2181,zk3:2181/"
    ),
    Mistake(location("h:2181", ZOOKEEPER, nope=1), f"has 'nope', which {ZOOKEEPER} doesn't know; it knows "),
    Mistake(location("h:2181", ZOOKEEPER, session_timeout=0), "['session_timeout'] must be seconds above 0"),
    Mistake(location(None, ROWS, using="nope"), "['using'] is 'nope', which DATABASES doesn't have; it has "),
    Mistake(
        location(None, ROWS, timeout=-1), "['timeout'] must be seconds above 0 (and below an hour), not -1."
    ),
    Mistake(location("x", ROWS), "has LOCATION, which"),
]


@pytest.mark.parametrize("login", ["", ":wrong@", "stranger:secret@"])
def test_a_wrong_password_is_reported_as_one(login: str, settings: Any) -> None:
    """Not as a server that is down."""
    with private_redis() as server:
        server.client.config_set("requirepass", "secret")
        settings.LOCKING = location(server.url.replace("//", f"//{login}"))
        (finding,) = live_checks._backend("default")
    assert "refuses this user or password" in finding.text
    assert "user or password in LOCKING" in finding.hint


def test_a_database_that_the_server_lacks_is_named_as_one() -> None:
    """A number above Redis' last says where it was written, and not only that a request was refused."""
    with private_redis() as server, override_settings(LOCKING=location(server.url.replace("db=0", "db=99"))):
        found = {finding.verdict: finding.text for finding in live_checks._backend("default")}
    assert "no database of this number: correct the end of LOCATION" in found["error"]


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("redis", "django-holdfast[redis]"),
        ("kazoo", "django-holdfast[zookeeper]"),
        ("requests", "django-holdfast[etcd]"),
    ],
)
def test_a_missing_client_is_reported_with_what_to_install(
    module: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra, ready to be pasted."""

    def missing(path: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(handler, "import_string", missing)
    with override_settings(LOCKING=backend(REDIS)):
        (message,) = check_setting()
    assert f"""No module named '{module}'; pip install "{advice}".""" in message.msg


CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": URL},
    "local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}


@distributed_lock(key="fenced:{order_id}", fenced=True)
def fenced(order_id: int) -> None:
    """Have every check look at a decorated function."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.text)
def test_check_tells_a_mistake_in_the_setting(mistake: Mistake) -> None:
    """It names the place and the value, and crashes on none; the first lock says the same."""
    assert fenced in DECORATED
    with override_settings(LOCKING=mistake.setting, CACHES=CACHES):
        (message,) = check_setting()
        assert mistake.text in message.msg
        assert message in run_checks(tags=["locking"])  # none crashes, whatever is decorated
        if isinstance(mistake.setting, dict):
            assert live_checks._backend("default") == []
        else:
            with mock.patch.object(live_checks, "connections", ()):
                assert [place for place, _ in live_checks.examine()] == [SETTING]
        if "default" in mistake.setting if isinstance(mistake.setting, dict) else True:
            with pytest.raises(ImproperlyConfigured, match=re.escape(mistake.text.rstrip("."))):
                locks["default"]


# --- the call ---------------------------------------------------------------------------------------------


def order(order_id: int, request: HttpRequest | None = None) -> str:
    return f"order {order_id}"


def decorated(**options: Any) -> Callable[[], object]:
    """Return the step that decorates a function with these options."""
    return lambda: distributed_lock(**options)(order)


async def in_event_loop() -> None:
    """Wait for a lock where nothing may wait."""
    with get_lock("order:42"):
        pass


async def tried_in_event_loop() -> None:
    """Try once where even one round trip blocks every task."""
    get_lock("order:42").try_acquire()


async def called_in_event_loop() -> None:
    """Call a decorated `def`, which can't await, from a task."""
    distributed_lock(key="order:{order_id}")(order)(42)


def longer_than_its_ttl() -> None:
    """Work for longer than a ttl that isn't renewed."""
    with get_lock("order:42", ttl=0.01) as lease:
        until(lambda: not lease.remaining(), "the lease has ended")


CALLS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: get_lock(), LockKeyError, "needs at least one name, for example get_lock('order:42')"),
    (lambda: get_lock(["a", "b"]), LockKeyError, "pass its items one by one: get_lock(*names)"),  # type: ignore[arg-type]
    (lambda: get_lock(42), LockKeyError, "must be a str, not 42 (int); pass str(…) of it"),  # type: ignore[arg-type]
    (lambda: get_lock(""), LockKeyError, "can't be empty (''): unrelated callers would share one lock"),
    (lambda: get_lock("a{"), LockKeyError, "the braces in the lock's name 'a{' don't pair up"),
    (lambda: get_lock("a", ttl=0), ValueError, "ttl must be between 0.001 and 604800 seconds, not 0"),
    (lambda: get_lock("a", wait="5"), ValueError, "wait must be a number of seconds or a timedelta, not '5'"),  # type: ignore[arg-type]
    (lambda: get_lock("a", renew=1.5), ValueError, "renew=1.5 must be True or False"),  # type: ignore[arg-type]
    (lambda: get_lock("a", timeout=5), TypeError, "the length of the lease is ttl= (seconds)"),  # type: ignore[call-arg]
    (lambda: get_lock("a", backend="x"), InvalidLockBackend, "LOCKING has no alias 'x'; it has "),
    (
        lambda: asyncio.run(in_event_loop()),
        SynchronousOnlyOperation,
        "write `async with`, `await lock.aacquire()`",
    ),
    (lambda: asyncio.run(tried_in_event_loop()), SynchronousOnlyOperation, "`await lock.atry_acquire()`"),
    (
        lambda: asyncio.run(called_in_event_loop()),
        SynchronousOnlyOperation,
        "or call this `def` by sync_to_async",
    ),
    (longer_than_its_ttl, LockExpired, "ttl=0.01 isn't renewed and ended before the work did"),
    (longer_than_its_ttl, LockExpired, "leave ttl out, or say renew=True"),
    (decorated(key="order:<order_id>"), LockKeyError, 'write "order:{order_id}"'),
    (
        decorated(key="'order:'+<oder_id>"),
        LockKeyError,
        """(it has order_id, request); did you mean "'order:'+<order_id>"?""",
    ),
    (decorated(key="order:{oder_id}"), LockKeyError, """did you mean "order:{order_id}"?"""),
    (decorated(key="nightly"), LockKeyError, """all calls share one lock: write "'nightly'" if"""),
    (decorated(key="order:%s"), LockKeyError, "column 1: a term is expected here: 'text' or <parameter>"),
    (decorated(key=42), LockKeyError, 'key=42 is no key: write key="order:{id}"'),
    (decorated(keys=["a"]), TypeError, "no argument 'keys': distributed_lock takes several by key="),
    (decorated(min_hold=60), TypeError, "write `with locked_transaction(…, min_hold=…):`"),
    (decorated(on_conflict="skp"), ValueError, "did you mean 'skip'?"),
    (decorated(retry_for=-1), ValueError, "retry_for must be 0"),
    (decorated(release=False), ValueError, "give a ttl, for example ttl=3"),
    (decorated(kind="reed"), ValueError, "kind='reed' must be one of"),
    (decorated(waits=3), TypeError, "did you mean wait?"),
]


def test_a_hundred_mistakes_have_their_text() -> None:
    """The table has at least a hundred rows, each with a text of its own."""
    texts = [mistake.text for mistake in MISTAKES] + [text for *_, text in CALLS]
    assert len(set(texts)) >= 100


@pytest.mark.usefixtures("memory_locks")
@pytest.mark.parametrize(("step", "error", "text"), CALLS, ids=[text for *_, text in CALLS])
def test_a_wrong_call_is_reported(step: Callable[[], object], error: type[Exception], text: str) -> None:
    """At once, before anything is sent, with what to write instead."""
    with pytest.raises(error, match=re.escape(text)):
        step()


@pytest.mark.usefixtures("memory_locks")
def test_the_holder_is_reported_by_its_process_and_line() -> None:
    """Not by the UUID alone."""
    lease = elsewhere(get_lock("order:42").acquire)
    with pytest.raises(LockNotAcquired) as caught:
        get_lock("order:42").acquire(wait=0)
    assert f"held by process {os.getpid()} on {socket.gethostname()}, " in str(caught.value)
    assert re.search(r", at \S+\.py:\d+ in \w+", str(caught.value))
    assert lease.owner in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).held_by == caught.value.held_by  # noqa: S301 - our own


def test_the_holder_in_another_process_is_reported_by_what_it_publishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that waited for a second asks once more; one that didn't wait, or a task, doesn't."""
    client = "0199aaaa-0000-8000-a000-000000000000"
    facts = {
        "host": "web-3",
        "pid": 7,
        "holds": {f"{client}:1": {"doing": "GET /pay/", "site": "views.py:9 in pay"}},
    }
    reported = {client: Heartbeat(json.dumps(facts), 0.1)}
    monkeypatch.setattr(locks["default"], "heartbeats", lambda clients: reported)
    owner = f"{client}:1"
    described = "process 7 on web-3, GET /pay/, at views.py:9 in pay"
    assert description(locks["default"], owner, ask=True) == described
    assert description(locks["default"], owner, ask=False) is None


@pytest.mark.usefixtures("memory_locks")
def test_a_dropped_lease_is_reported_with_its_line() -> None:
    """It is neither renewed nor released any more: its lock stays taken until its lease ends."""

    def drop() -> None:
        get_lock("order:42").acquire()
        gc.collect()

    with pytest.warns(ResourceWarning, match="the lease of the lock 'order:42', acquired at .*test_mistakes"):
        drop()


ANSWERS = {
    "busy": (409, LockNotAcquired("a", waited=1, backend="default")),
    "lost": (409, LockLost("a")),
    "expired": (409, LockExpired("a")),
    "unavailable": (503, BackendUnavailable("a")),
    "crowded": (503, TooManyWaiters("a", waited=0, backend="default")),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_each_refusal_has_a_type_of_its_own(kind: str) -> None:
    """A client can tell what it is worth to repeat."""
    status, error = ANSWERS[kind]
    response = conflict_response(RequestFactory().get("/"), error)
    assert response.status_code == status
    assert json.loads(response.content)["type"] == f"urn:holdfast:problem:lock-{kind}"
