"""What endangers locks on a running Redis server, by what it says about itself: for Django's checks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, Literal

from django.core.checks import CheckMessage, Error, Warning

from locking.backends.base import BaseLockBackend, Finding, finding_of
from locking.backends.capabilities import Kinds, backend_of
from locking.backends.redis.protocol import ReplicaAck, Server
from locking.backends.redis.scripts import command, escaped, pairs_of
from locking.backends.redis.transport import run
from locking.exceptions import BackendError, BackendUnavailable

FLOOR: Final = (6, 2)  # the oldest version whose commands the scripts may use
CLOCKS_APART: Final = 1.0  # seconds; tokens and the times of lists are counted by the server's clock
NEARLY_FULL: Final = 0.9  # of maxmemory; a full server that evicts nothing refuses every acquisition
SCANNED: Final = 1000  # keys of a server that one request passes
LOOKED_AT: Final = 20_000  # and all of them, among which counters, or keys of another use, are looked for
MANY: Final = 10_000  # counters without a ttl that are worth a word
MOST_OTHERS: Final = 1000  # keys under the prefix that are looked at, each by a request
SHOWN: Final = 3


def parse_info(reply: Any) -> dict[str, str]:
    """Return the fields of an INFO reply, which RESP3 may open with `txt:`."""
    lines = bytes(reply).decode(errors="replace").removeprefix("txt:").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def judge(info: Mapping[str, str], alias: str) -> list[CheckMessage]:
    """Return what is wrong with the server of `alias`, by its INFO."""
    wrong = list[CheckMessage]()
    version, policy = info.get("redis_version", "0"), info.get("maxmemory_policy", "noeviction")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < FLOOR:
        error = Error(
            f"The Redis server of LOCKING[{alias!r}] has version {version}, older than 6.2.",
            hint="Upgrade the server: the lock scripts use commands that it doesn't have.",
            id="locking.E102",
        )
        wrong.append(error)
    if policy != "noeviction":
        warning = Warning(
            f"The Redis server of LOCKING[{alias!r}] may evict locks: its maxmemory-policy is {policy}.",
            hint="Set maxmemory-policy to noeviction, or give the locks a server of their own (LOCATION).",
            id="locking.W101",
        )
        wrong.append(warning)
    return wrong


def diagnose_server(server: Server) -> list[Finding]:
    """Return what one server shows; BackendUnavailable where it doesn't answer."""
    return [
        *permitted(_by_info(server), "INFO and TIME"),
        *permitted(_counters(server), "SCAN, DBSIZE and TTL"),
    ]


def permitted(findings: Iterable[Finding], needed: str) -> list[Finding]:
    """Return the findings, each made when it is asked for, or a message that this user lacks the right."""
    try:
        return list(findings)
    except BackendUnavailable:
        raise
    except BackendError as error:
        hint = f"Let this user run {needed} (ACL SETUSER)."
        return [Finding("permissions", "unknown", str(error), hint)]


def _by_info(server: Server) -> Iterator[Finding]:
    info = parse_info(run(server.command("INFO")))
    wrong = {message.id: finding_of(message) for message in judge(info, server.alias)}
    yield wrong.get("locking.E102") or Finding("version", "ok", f"Redis {info.get('redis_version', '?')}")
    yield wrong.get("locking.W101") or Finding("eviction", "ok", "maxmemory-policy noeviction")
    yield _memory(info)
    yield from _persistence(info)
    yield judge_replication(info, server.replica_ack, _min_replicas(server))
    yield _clock(server)


def _memory(info: Mapping[str, str]) -> Finding:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        return Finding("memory", "ok", f"{used / 1e6:.1f} MB used, no limit set")
    text = f"{used / 1e6:.1f} MB of {most / 1e6:.1f} MB used"
    if used < most * NEARLY_FULL:
        return Finding("memory", "ok", text)
    hint = "Raise maxmemory, or give the locks a server of their own."
    return Finding("memory", "warning", f"{text}: a full server refuses every acquisition", hint)


def _persistence(info: Mapping[str, str]) -> Iterator[Finding]:
    """A restart without persistence forgets who holds what; with an old snapshot it remembers wrongly."""
    if info.get("loading", "0") != "0":
        text = "the server is still loading its data"
        yield Finding("persistence", "error", text, "Wait until it is done.")
    if {info.get("rdb_last_bgsave_status", "ok"), info.get("aof_last_write_status", "ok")} != {"ok"}:
        text = "the last write to the disk failed: by default the server then refuses to be written to"
        yield Finding("persistence", "error", text, "See the server's log, and free some disk space.")
    elif info.get("aof_enabled") == "1":
        yield Finding("persistence", "ok", "the append-only file is on")
    else:
        text = "the append-only file is off: when the server restarts, locks that are held are free"
        hint = "Set appendonly yes, or use fenced=True where two holders at once would do harm."
        yield Finding("persistence", "warning", text, hint)


def judge_replication(
    info: Mapping[str, str], copies: ReplicaAck | None, min_replicas: int | None
) -> Finding:
    """Say whether a failover may lose what was acquired; `min_replicas` is as `_min_replicas` has it."""
    replicas, wanted = int(info.get("connected_slaves", 0)), copies.replicas if copies is not None else 0
    verdict: Literal["ok", "warning", "error", "unknown"] = "ok"
    text, hint = f"master of {replicas} replicas", ""
    if info.get("role") == "slave":
        link = info.get("master_link_status", "?")
        verdict, text = "error", f"this is a replica (the link to its master is {link}): it takes no locks"
        hint = "Point LOCATION or CACHE at the master, or at the Sentinels: sentinel+redis://…."
    elif isinstance(wanted, int) and replicas < wanted:
        verdict, hint = "error", "Start the replicas, or ask for fewer."
        text = (
            f"{replicas} replicas are connected, but wait_replicas asks for {wanted}: nothing can be acquired"
        )
    elif replicas and copies is None:
        verdict, hint = "warning", "Set OPTIONS['wait_replicas'], or use fenced=True."
        text += ", and an acquisition doesn't wait for any: a failover may lose it"
    elif copies is not None and not min_replicas:  # no replica confirms a renewal: only the server can refuse
        verdict = "unknown" if min_replicas is None else "warning"
        known = "can't be read by this user" if min_replicas is None else "is off"
        text += (
            f"; min-replicas-to-write {known}: a master that is cut off goes on renewing its leases, and with"
            " wait_replicas='auto' granting locks, beside the one that took over"
        )
        hint = (
            "Set min-replicas-to-write 1 and min-replicas-max-lag 10 on every server of the service, or use"
            " fenced=True."
        )
    return Finding("replication", verdict, text, hint)


def _min_replicas(server: Server) -> int | None:
    """Return what the server asks for before a write, None where it doesn't matter or can't be read."""
    if server.replica_ack is None:
        return None
    try:
        found = pairs_of(run(server.command("CONFIG", "GET", "min-replicas-*")))
    except BackendUnavailable:
        raise
    except BackendError:
        return None
    return min((int(value) for _, value in found), default=None)  # either one as 0 turns both off


def _clock(server: Server) -> Finding:
    asked = time.time()  # noqa: TID251 shown
    seconds, micros = run(server.command("TIME"))
    answered = time.time()  # noqa: TID251 shown
    ahead = int(seconds) + int(micros) / 1_000_000 - (asked + answered) / 2
    text = f"the server's clock is {ahead:+.3f} s from this machine's (± {(answered - asked) / 2:.3f} s)"
    if abs(ahead) <= CLOCKS_APART:
        return Finding("clock", "ok", text)
    hint = "Synchronize both by NTP: leases keep their length, but times in lists and the log are wrong."
    return Finding("clock", "warning", text, hint)


def _scan(server: Server, pattern: str) -> Iterator[list[bytes]]:
    """Yield the keys that match a pattern, of a thousand at a time and `LOOKED_AT` in all."""
    cursor = b"0"
    for _ in range(0, LOOKED_AT, SCANNED):
        cursor, found = run(server.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED))
        yield found
        if cursor == b"0":
            return


def _counters(server: Server) -> Iterator[Finding]:
    """Count the fencing counters that stay forever: one for each name that was ever fenced."""
    pages = _scan(server, "redisson_lock_token:*")
    endless = [run(server.call_many([command("TTL", key) for key in keys])).count(-1) for keys in pages]
    number, looked_at = sum(endless), len(endless) * SCANNED
    text = f"{number} without a ttl"
    if looked_at >= LOOKED_AT:  # SCAN goes through them in no order
        number = sum(endless) * int(run(server.command("DBSIZE"))) // looked_at
        text = f"about {number} ({sum(endless)} among {looked_at} keys) without a ttl"
    if number < MANY:
        yield Finding("token counters", "ok", text)
        return
    yield Finding(
        "token counters",
        "warning",
        f"{text}: every name that was locked with fenced=True, or by Redisson's fenced lock, keeps one for"
        " ever",
        "Give those a ttl whose names are never locked again, such as an order's number. Ours restart from"
        " the server's clock; Redisson's from 1, which a database that remembers more refuses.",
    )


def find_other_keys(backend: Kinds, servers: Iterable[Server]) -> Iterator[Finding]:
    """Look for keys under the alias's KEY_PREFIX that are no locks: acquiring such a name is an error."""
    prefix = backend.settings.key_prefix
    if not prefix:  # every key of the server would be such
        return
    pages = chain.from_iterable(_scan(server, f"{escaped(prefix)}*") for server in servers)
    keys = [key.decode(errors="replace") for key in islice(chain.from_iterable(pages), MOST_OTHERS)]
    kinds = [backend, *(backend_of(backend, kind) for kind in backend.kinds & {"semaphore"})]
    others = [key for key in keys if all(_is_refused(kind, key) for kind in kinds)]
    if not others:
        yield Finding("other keys", "ok", f"none of {len(keys)} keys under {prefix!r} is of another use")
        return
    some = ", ".join(others[:SHOWN]) + (" …" if len(others) > SHOWN else "")
    text = f"{len(others)} of {len(keys)} keys under {prefix!r} are no locks and can't be acquired: {some}"
    yield Finding("other keys", "warning", text, "Delete them, or give the locks another KEY_PREFIX.")


def _is_refused(kind: BaseLockBackend, key: str) -> bool:
    """Whether the key is of another type than this kind of lock; a semaphore's is its own."""
    try:
        kind.holder(key)
    except BackendError as error:
        if "NOTALOCK" not in str(error):
            raise
        return True
    return False
