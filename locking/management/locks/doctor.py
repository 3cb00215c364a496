"""`locks doctor`: the live checks as a report. It leaves nothing behind: its one lock is released again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal
from uuid import uuid4

from django.core.checks import ERROR, CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections
from django.db.transaction import atomic

from locking.backends.base import BaseLockBackend, Busy, Finding
from locking.backends.capabilities import Diagnosis, Listing
from locking.core.handler import locks
from locking.core.liveness import SETTING, directory, peers
from locking.exceptions import LockError, LockNotSupported
from locking.inspection.held import GONE, held_locks
from locking.models import Fence
from locking.utils.databases import VENDORS
from locking.utils.ownership import new_owner

ROUNDS: Final = 40
"""Measurements of each latency."""

SLOW: Final = 0.05
"""Seconds; an acquisition that is slower than this at the 95th percentile costs more than most requests."""

CLOCKS_APART: Final = 1.0
"""Seconds by which the database's clock may differ."""

TIMES: Final = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "mysql": "SELECT unix_timestamp(now(6))",
}
"""What asks for the Unix time; SQLite runs on this machine."""

LOOKED_AT: Final = 1000
"""Holds that are searched for leaks, the oldest first."""


@dataclass(frozen=True, slots=True)
class Section:
    """What was found about one thing: the settings, a backend, a database."""

    title: str
    findings: list[Finding]


def worst(sections: Sequence[Section]) -> str:
    """Return the worst verdict that matters: `error`, `warning` or `ok`."""
    found = {finding.verdict for section in sections for finding in section.findings}
    return "error" if "error" in found else "warning" if "warning" in found else "ok"


def examine(alias: str | None = None) -> Iterator[Section]:
    """Look at the settings, at every backend (or one), and at every database; each as soon as it is done."""
    yield Section("settings", [*_settings(), _liveness()])
    for each in [alias] if alias is not None else list(locks):
        yield Section(f"backend {each}", _backend(each))
    for each in connections:
        yield Section(f"database {each}", _guarded("database", partial(_database, each), DatabaseError))


def finding_of(message: CheckMessage) -> Finding:
    """Return a system check's message as a finding."""
    verdict: Literal["error", "warning"] = "error" if message.level >= ERROR else "warning"
    return Finding(message.id or "check", verdict, str(message.msg), str(message.hint or ""))


def _guarded(
    subject: str, look: Callable[[], list[Finding]], *errors: type[Exception], hint: str = ""
) -> list[Finding]:
    """What `look` found; what it raised is a finding too."""
    try:
        return look()
    except errors as error:
        return [Finding(subject, "error", str(error).strip(), hint)]


# the settings


def _settings() -> list[Finding]:
    found = [finding_of(message) for message in run_checks(tags=["locking"])]
    return found or [Finding("checks", "ok", "manage.py check --tag locking finds nothing")]


def _liveness() -> Finding:
    """Whether a killed process's locks are released at once, as far as this process's user can tell."""
    hint = f"Set {SETTING} to a directory that only this deployment's users may write to, or to None."
    try:
        folder = directory()
        others = 0 if folder is None else sum(1 for _ in peers(folder))
    except (OSError, ImproperlyConfigured) as error:
        text = f"locks of killed processes end with their leases: {error}"
        return Finding("process liveness", "warning", text, hint)
    if folder is None:
        return Finding("process liveness", "ok", f"turned off: {SETTING} is None")
    return Finding("process liveness", "ok", f"{others} other processes in {folder}")


# a backend


def _backend(alias: str) -> list[Finding]:
    try:
        backend = locks[alias]
    except (ImproperlyConfigured, ImportError, LookupError) as error:
        return [Finding("backend", "error", str(error), "Correct LOCKING.")]
    hint = "Start the server, or correct its address in LOCKING or CACHES."
    found = _guarded("server", partial(_diagnosed, backend), LockError, hint=hint)
    if any(finding.subject == "server" and finding.verdict == "error" for finding in found):
        return found  # the rest would only wait for it again
    found += [_names(backend)]
    found += _guarded("latency", partial(_latencies, backend), LockError)
    return [*found, *_guarded("holds", partial(_holds, backend), LockError)]


def _diagnosed(backend: BaseLockBackend) -> list[Finding]:
    if isinstance(backend, Diagnosis):
        return backend.diagnose()
    return [finding_of(message) for message in backend.check(live=True)]


def _names(backend: BaseLockBackend) -> Finding:
    """Tell what is put before every name, and so with whom this alias shares its locks."""
    prefix, usual = backend.key(""), backend.default_key_prefix(backend.settings)
    text = f"every key begins with {prefix!r}" if prefix else "keys are the bare names"
    if usual and not prefix:
        text += (
            " (KEY_PREFIX is ''): every project on this server shares these locks,"
            f" and so does Redisson; without KEY_PREFIX they would begin with {usual!r}"
        )
    return Finding("names", "ok", text)


def _latencies(backend: BaseLockBackend) -> list[Finding]:
    # Where each name leaves a row for ever, it is always the same.
    key = backend.key("holdfast:doctor" if backend.transaction_on else f"holdfast:doctor:{uuid4()}")
    found = list[Finding]()
    with suppress(LockNotSupported):  # a lock of a transaction may show no holder
        found.append(_latency("one request", _measure(lambda: backend.holder(key))))
    return [*found, _latency("acquire + release", _measure(lambda: _lock_once(backend, key)))]


def _lock_once(backend: BaseLockBackend, key: str) -> None:
    owner, ends_with = new_owner(), backend.transaction_on
    with nullcontext() if ends_with is None else atomic(ends_with):
        if isinstance(backend.try_acquire(key, owner, 5.0), Busy):
            raise LockError(f"the throwaway lock {key!r} is held by another client")
        backend.release(key, owner)


def _measure(step: Callable[[], object]) -> list[float]:
    step()  # the first opens a connection
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return seconds


def _latency(what: str, seconds: Sequence[float]) -> Finding:
    median, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    text = f"{what}: p50 {median * 1000:.2f} ms, p95 {p95 * 1000:.2f} ms"
    if p95 <= SLOW:
        return Finding("latency", "ok", text)
    return Finding("latency", "warning", text, "Look at the network and the load of the server.")


def _holds(backend: BaseLockBackend) -> list[Finding]:
    """Look for holds that will not end by themselves, or whose holder has."""
    if not isinstance(backend, Listing):
        return [Finding("holds", "unknown", "this backend can't list what is held")]
    listed = backend.count_held(prefix=backend.key(""))
    page = held_locks(backend.alias, limit=LOOKED_AT)
    gone = [hold.name for hold in page.rows if hold.state == GONE]
    endless = [hold.name for hold in page.rows if hold.remaining is None]
    return [
        Finding("holds", "ok", f"{page.total} held"),
        _leak("holder gone", gone, "They end with their ttl; to free one now: manage.py locks release NAME."),
        _leak("no end", endless, "Such a lock was made without a ttl: manage.py locks release NAME."),
        _stale(listed, page.total, complete=len(page.rows) == page.total),
    ]


def _leak(subject: str, names: Sequence[str], hint: str) -> Finding:
    if not names:
        return Finding(subject, "ok", "none")
    some = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return Finding(subject, "warning", f"{len(names)}: {some}", hint)


def _stale(before: int, after: int, *, complete: bool) -> Finding:
    """Reading a list takes out what has ended, so a second count tells how much that was."""
    if not complete:
        return Finding("list", "unknown", f"more than {LOOKED_AT} holds: not all were looked at")
    ended = max(0, before - after)
    return Finding("list", "ok", f"{ended} entries had ended by themselves, and were taken out")


# a database


def _database(alias: str) -> list[Finding]:
    fence = _fence(alias)
    return [fence, *([_tokens(alias)] if fence.verdict == "ok" else []), _clock(alias)]


def _tokens(alias: str) -> Finding:
    """Look for tokens of a lock server whose clock ran ahead of this machine's."""
    limit = int((time.time() + CLOCKS_APART) * 1_000_000)  # noqa: TID251 shown
    ahead = Fence.objects.using(alias).filter(token__gt=limit)
    names = list(ahead.order_by("-token").values_list("name", "token")[:3])
    if not names:
        return Finding("tokens", "ok", "no fencing token is ahead of this machine's clock")
    seconds = names[0][1] / 1_000_000 - time.time()  # noqa: TID251 shown
    some = ", ".join(name for name, _ in names)
    return Finding(
        "tokens",
        "warning",
        f"tokens of {ahead.count()} names are up to {seconds:.0f} s ahead of this machine's clock: {some}",
        "The clock of a lock server ran ahead: synchronize it by NTP. Fenced work goes on: a holder whose"
        " token is too low is given a higher one, unless its engine can't.",
    )


def _fence(alias: str) -> Finding:
    connection = connections[alias]
    if connection.vendor not in VENDORS:
        return Finding("fence", "unknown", f"{connection.display_name} can't check fencing tokens")
    if Fence._meta.db_table in connection.introspection.table_names():
        return Finding("fence", "ok", f"the table {Fence._meta.db_table} is there")
    return Finding(
        "fence",
        "warning",
        f"there is no table {Fence._meta.db_table}: fenced=True fails on this database",
        f"Run manage.py migrate --database={alias}, unless nothing is fenced here.",
    )


def _clock(alias: str) -> Finding:
    query = TIMES.get(connections[alias].vendor)
    if query is None:
        return Finding("clock", "unknown", f"not asked for on {connections[alias].display_name}")
    with connections[alias].cursor() as cursor:
        asked = time.time()  # noqa: TID251 shown
        cursor.execute(query)
        (there,) = cursor.fetchone()
    answered = time.time()  # noqa: TID251 shown
    ahead = float(there) - (asked + answered) / 2
    text = f"its clock is {ahead:+.3f} s from this machine's (± {(answered - asked) / 2:.3f} s)"
    if abs(ahead) <= CLOCKS_APART:
        return Finding("clock", "ok", text)
    return Finding("clock", "warning", text, "Synchronize both by NTP.")
