"""What endangers locks on a running Redis server, by what it says about itself: for Django's checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from django.core.checks import CheckMessage, Error, Warning

from locking.backends.base import Finding, finding_of
from locking.backends.redis.protocol import ReplicaAck
from locking.backends.redis.scripts import command
from locking.backends.redis.transport import RedisClient
from locking.exceptions import BackendError, BackendUnavailable

FLOOR: Final = (6, 2)
"""The oldest version whose commands the scripts may use."""

CLOCKS_APART: Final = 1.0
"""Seconds by which the server's clock may differ: tokens and the times of lists are counted by it."""

NEARLY_FULL: Final = 0.9
"""Share of maxmemory; at the whole a server that evicts nothing refuses every acquisition."""

LOOKED_AT: Final = 20_000
"""Keys of a server among which counters are looked for, a stretch at a time."""

STRETCH: Final = 1000

MANY: Final = 10_000
"""Counters without a ttl that are worth a word."""

COUNTERS: Final = "redisson_lock_token:*"


def parse_info(reply: Any) -> dict[str, str]:
    """Return the fields of an INFO reply, which RESP3 may open with `txt:`."""
    lines = bytes(reply).decode(errors="replace").removeprefix("txt:").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def judge(info: Mapping[str, str], alias: str) -> list[CheckMessage]:
    """Return what is wrong with the server of `alias`, by its INFO."""
    return [*_judge_version(info, alias), *_judge_eviction(info, alias)]


def _judge_version(info: Mapping[str, str], alias: str) -> Iterator[CheckMessage]:
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < FLOOR:
        yield Error(
            f"The Redis server of LOCKING[{alias!r}] has version {version}, older than 6.2.",
            hint="Upgrade the server: the lock scripts use commands that it doesn't have.",
            id="locking.E102",
        )


def _judge_eviction(info: Mapping[str, str], alias: str) -> Iterator[CheckMessage]:
    """Judge what the server does when its memory is full."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield Warning(
            f"The Redis server of LOCKING[{alias!r}] may evict locks: its maxmemory-policy is {policy}.",
            hint="Set maxmemory-policy to noeviction, or give the locks a server of their own (LOCATION).",
            id="locking.W101",
        )


def diagnose_server(client: RedisClient, alias: str, copies: ReplicaAck | None) -> list[Finding]:
    """Return what one server shows; BackendUnavailable where it doesn't answer."""
    return [
        *permitted(
            lambda: [
                *_by_info(parse_info(client.command("INFO")), alias, copies, _min_replicas(client, copies)),
                _clock(client),
            ],
            "INFO and TIME",
        ),
        *permitted(lambda: [_counters(client)], "SCAN, DBSIZE and TTL"),
    ]


def permitted(look: Callable[[], list[Finding]], needed: str) -> list[Finding]:
    """What `look` found, or that this user may not look."""
    try:
        return look()
    except BackendUnavailable:
        raise
    except BackendError as error:
        hint = f"Let this user run {needed} (ACL SETUSER)."
        return [Finding("permissions", "unknown", str(error), hint)]


def _by_info(
    info: Mapping[str, str], alias: str, copies: ReplicaAck | None, min_replicas: int | None
) -> list[Finding]:
    return [
        _checked("version", _judge_version(info, alias), f"Redis {info.get('redis_version', '?')}"),
        _checked("eviction", _judge_eviction(info, alias), "maxmemory-policy noeviction"),
        *_memory(info),
        *_persistence(info),
        *judge_replication(info, copies, min_replicas),
    ]


def _checked(subject: str, messages: Iterable[CheckMessage], well: str) -> Finding:
    return next((finding_of(message) for message in messages), Finding(subject, "ok", well))


def _memory(info: Mapping[str, str]) -> Iterator[Finding]:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        yield Finding("memory", "ok", f"{_megabytes(used)} used, no limit set")
    elif used < most * NEARLY_FULL:
        yield Finding("memory", "ok", f"{_megabytes(used)} of {_megabytes(most)} used")
    else:
        text = f"{_megabytes(used)} of {_megabytes(most)} used: a full server refuses every acquisition"
        yield Finding("memory", "warning", text, "Raise maxmemory, or give the locks a server of their own.")


def _megabytes(count: int) -> str:
    return f"{count / 1_000_000:.1f} MB"


def _persistence(info: Mapping[str, str]) -> Iterator[Finding]:
    """A restart without persistence forgets who holds what; with an old snapshot it remembers wrongly."""
    if info.get("loading", "0") != "0":
        yield Finding(
            "persistence", "error", "the server is still loading its data", "Wait until it is done."
        )
    refused = (
        info.get("rdb_last_bgsave_status", "ok") != "ok" or info.get("aof_last_write_status", "ok") != "ok"
    )
    if refused:
        yield Finding(
            "persistence",
            "error",
            "the last write to the disk failed: by default the server then refuses to be written to",
            "See the server's log, and free some disk space.",
        )
    elif info.get("aof_enabled") == "1":
        yield Finding("persistence", "ok", "the append-only file is on")
    else:
        yield Finding(
            "persistence",
            "warning",
            "the append-only file is off: when the server restarts, locks that are held are free",
            "Set appendonly yes, or use fenced=True where two holders at once would do harm.",
        )


def judge_replication(
    info: Mapping[str, str], copies: ReplicaAck | None, min_replicas: int | None
) -> Iterator[Finding]:
    """Say whether a failover may lose what was acquired.

    Args:
        info: the server's INFO.
        copies: what an acquisition waits for, if anything.
        min_replicas: the server's `min-replicas-to-write`; None where it wouldn't tell.
    """
    if info.get("role") == "slave":
        link = info.get("master_link_status", "?")
        yield Finding(
            "replication",
            "error",
            f"this is a replica (the link to its master is {link}): it takes no locks",
            "Point LOCATION or CACHE at the master, or at the Sentinels: sentinel+redis://….",
        )
        return
    replicas = int(info.get("connected_slaves", 0))
    wanted = copies.replicas if copies is not None else 0
    if isinstance(wanted, int) and replicas < wanted:
        text = (
            f"{replicas} replicas are connected, but wait_replicas asks for {wanted}: nothing can be acquired"
        )
        yield Finding("replication", "error", text, "Start the replicas, or ask for fewer.")
    elif replicas and copies is None:
        text = (
            f"master of {replicas} replicas, and an acquisition doesn't wait for any: a failover may lose it"
        )
        yield Finding("replication", "warning", text, "Set OPTIONS['wait_replicas'], or use fenced=True.")
    elif wanted == "auto" and not min_replicas:
        yield _unguarded(replicas, min_replicas)
    else:
        yield Finding("replication", "ok", f"master of {replicas} replicas")


def _unguarded(replicas: int, min_replicas: int | None) -> Finding:
    """What "auto" asks for, the master decides: one that is cut off drops its replicas, and asks for none."""
    known = "is 0" if min_replicas == 0 else "can't be read by this user"
    text = (
        f"master of {replicas} replicas; min-replicas-to-write {known}: once a master that is cut off has"
        " dropped its replicas, wait_replicas='auto' confirms nothing there, and a failover loses its locks"
    )
    hint = (
        "Set min-replicas-to-write 1 and min-replicas-max-lag 10 on every server of the service, or"
        " OPTIONS['wait_replicas'] to a number; or use fenced=True."
    )
    return Finding("replication", "unknown" if min_replicas is None else "warning", text, hint)


def _min_replicas(client: RedisClient, copies: ReplicaAck | None) -> int | None:
    """Return the server's `min-replicas-to-write`, None where it doesn't matter or can't be read."""
    if copies is None or copies.replicas != "auto":
        return None
    try:
        found = client.command("CONFIG", "GET", "min-replicas-to-write")
    except BackendUnavailable:
        raise
    except BackendError:
        return None
    values = list(found.values()) if isinstance(found, dict) else found[1::2]
    return int(values[0]) if values else None


def _clock(client: RedisClient) -> Finding:
    asked = time.time()  # noqa: TID251 shown
    seconds, micros = client.command("TIME")
    answered = time.time()  # noqa: TID251 shown
    ahead = int(seconds) + int(micros) / 1_000_000 - (asked + answered) / 2
    text = f"the server's clock is {ahead:+.3f} s from this machine's (± {(answered - asked) / 2:.3f} s)"
    if abs(ahead) <= CLOCKS_APART:
        return Finding("clock", "ok", text)
    hint = "Synchronize both by NTP: leases keep their length, but times in lists and the log are wrong."
    return Finding("clock", "warning", text, hint)


def _counters(client: RedisClient) -> Finding:
    """Count the fencing counters that stay for ever: one for each name that was ever fenced."""
    endless, looked_at, cursor = 0, 0, b"0"
    while looked_at < LOOKED_AT:
        cursor, keys = client.command("SCAN", cursor, "MATCH", COUNTERS, "COUNT", STRETCH)
        lefts = client.call_many([command("TTL", key) for key in keys])
        endless, looked_at = endless + lefts.count(-1), looked_at + STRETCH
        if cursor == b"0":
            return _counted(str(endless), endless)
    estimate = endless * int(client.command("DBSIZE")) // looked_at  # SCAN goes through them in no order
    return _counted(f"about {estimate} ({endless} among {looked_at} keys)", estimate)


def _counted(text: str, number: int) -> Finding:
    if number < MANY:
        return Finding("token counters", "ok", f"{text} without a ttl")
    return Finding(
        "token counters",
        "warning",
        f"{text} without a ttl: every name that was locked with fenced=True, or by Redisson's fenced lock,"
        " keeps one for ever",
        "Give those a ttl whose names are never locked again, such as an order's number. Ours restart from"
        " the server's clock; Redisson's from 1, which a database that remembers more refuses.",
    )


def named(server: str, findings: list[Finding]) -> list[Finding]:
    """Say of which server of several these are."""
    return [replace(finding, subject=f"{finding.subject} ({server})") for finding in findings]
