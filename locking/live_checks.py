"""What the servers and databases say: `manage.py check --tag locking_live`, the one check that asks them.

What is wrong becomes a message, what is well goes to the log; the one lock that it takes is released.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final
from uuid import uuid4

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections
from django.db.transaction import atomic

from locking.backends.base import BaseLockBackend, Busy, Finding, finding_of
from locking.backends.capabilities import Diagnosis, Listing
from locking.core.handler import InvalidLockBackend, locks
from locking.exceptions import LockError, LockNotSupported
from locking.liveness import SETTING, directory, peers
from locking.models import Fence
from locking.utils.databases import VENDORS
from locking.utils.ownership import new_owner

logger = logging.getLogger(__name__)

LIVE_TAG: Final = "locking_live"

IDS: Final = {
    "server": ("E101",),
    "memory": ("W201",),
    "persistence": ("E202", "W202"),
    "replication": ("E203", "W203", "I203"),
    "clock": ("W204",),
    "token counters": ("W205",),
    "other keys": ("W206",),
    "permissions": ("I207",),
    "latency": ("E208", "W208"),
    "holds": ("E209", "I209"),
    "holder gone": ("W210",),
    "no end": ("W211",),
    "list": ("I212",),
    "process liveness": ("W213",),
    "database": ("E214",),
    "fence": ("W215", "I215"),
    "tokens": ("W216",),
}
"""The ids of messages, by the subject of their finding: one of a level, which its letter tells."""

OF_ANOTHER_BACKEND: Final = ("E299", "W299", "I299")

LEVELS: Final = {"error": Error, "warning": Warning, "unknown": Info}

ROUNDS: Final = 40  # measurements of each latency

SLOW: Final = 0.05
"""Seconds; an acquisition that is slower than this at the 95th percentile costs more than most requests."""

CLOCKS_APART: Final = 1.0  # seconds by which the database's clock may differ

TIMES: Final = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "mysql": "SELECT unix_timestamp(now(6))",
}
"""What asks for the Unix time; SQLite runs on this machine."""

LOOKED_AT: Final = 1000  # holds that are searched for leaks, the oldest first


@register(LIVE_TAG)
def check_live(**_: Any) -> list[CheckMessage]:
    """Ask every backend and database, when asked to by tag."""
    # Without a tag Django runs every check, and passes none of them the tags; its caller's frame has them.
    if LIVE_TAG not in (sys._getframe(1).f_locals.get("tags") or ()):
        return []
    return [message for place, finding in examine() if (message := _message(place, finding)) is not None]


def examine() -> Iterator[tuple[str, Finding]]:
    """Yield what is found, well or not, and of which setting."""
    yield SETTING, _liveness()
    with suppress(ImproperlyConfigured):  # LOCKING can't be read, as `locking.E001` says
        yield from ((f"LOCKING[{alias!r}]", each) for alias in list(locks) for each in _backend(alias))
    for alias in connections:
        yield from (
            (f"DATABASES[{alias!r}]", each) for each in _guarded("database", partial(_database, alias))
        )


def _message(place: str, finding: Finding) -> CheckMessage | None:
    """Return a finding as a message; None where it is well, or no matter while developing."""
    text = f"{place}: {finding.subject}: {finding.text}"
    if finding.verdict == "ok":
        logger.info("%s", text)
        return None
    subject = finding.subject.partition(" (")[0]
    if settings.DEBUG and (subject, finding.verdict) == ("persistence", "warning"):
        return None
    level = LEVELS[finding.verdict]
    if subject.startswith("locking."):  # from a message of the backend's own
        return level(finding.text, hint=finding.hint or None, id=subject)
    ids = (*IDS.get(subject, ()), *OF_ANOTHER_BACKEND)
    number = next(each for each in ids if each[0] == level.__name__[0])
    return level(text, hint=finding.hint or None, id=f"locking.{number}")


def _guarded(subject: str, look: Callable[[], Iterable[Finding]], hint: str = "") -> list[Finding]:
    """Return what `look` found; what it raised is a finding too."""
    try:
        return list(look())
    except (LockError, DatabaseError) as error:
        return [Finding(subject, "error", str(error).strip(), hint)]


def _liveness() -> Finding:
    """Tell whether a killed process's locks are released at once, as far as this process's user can see."""
    try:
        folder = directory()
        others = 0 if folder is None else len({peer.client for peer in peers(folder).values()})
    except (OSError, ImproperlyConfigured) as error:
        hint = f"Set {SETTING} to a directory that only this deployment's users may write to, or to None."
        text = f"locks of killed processes end with their leases: {error}"
        return Finding("process liveness", "warning", text, hint)
    return Finding("process liveness", "ok", "None" if folder is None else f"{others} others in {folder}")


def _backend(alias: str) -> list[Finding]:
    try:
        backend = locks[alias]
    except (ImproperlyConfigured, InvalidLockBackend):
        return []  # locking.E004 says why
    hint = "Start the server, or correct its address, user or password in LOCKING or CACHES."
    if isinstance(backend, Diagnosis):
        found = _guarded("server", backend.diagnose, hint)
    else:
        found = _guarded("server", lambda: map(finding_of, backend.check(live=True)), hint)
    if any((each.subject, each.verdict) == ("server", "error") for each in found):
        return found  # the rest would only wait for it again
    latency = _guarded("latency", partial(_latencies, backend))
    return [*found, *latency, *_guarded("holds", partial(_holds, backend))]


def _latencies(backend: BaseLockBackend) -> Iterator[Finding]:
    # Where each name leaves a row forever, it is always the same.
    key = backend.key("holdfast:check" if backend.transaction_on else f"holdfast:check:{uuid4()}")
    with suppress(LockNotSupported):  # a lock of a transaction may show no holder
        yield _latency("one request", partial(backend.holder, key))
    yield _latency("acquire + release", partial(_lock_once, backend, key))


def _lock_once(backend: BaseLockBackend, key: str) -> None:
    owner, ends_with = new_owner(), backend.transaction_on
    with nullcontext() if ends_with is None else atomic(ends_with):
        if isinstance(backend.try_acquire(key, owner, 5.0), Busy):
            raise LockError(f"the throwaway lock {key!r} is held by another client")
        backend.release(key, owner)


def _latency(what: str, step: Callable[[], object]) -> Finding:
    step()  # the first opens a connection
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    median, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    text = f"{what}: p50 {median * 1000:.2f} ms, p95 {p95 * 1000:.2f} ms"
    hint = "Look at the network and the load of the server."
    return Finding("latency", "ok" if p95 <= SLOW else "warning", text, hint)


def _holds(backend: BaseLockBackend) -> Iterator[Finding]:
    """Look for holds that will not end by themselves, or whose holder has."""
    if not isinstance(backend, Listing):
        yield Finding("holds", "unknown", "this backend can't list what is held")
        return
    from locking.inspection.columns import GONE
    from locking.inspection.held import held_locks  # a fifth of what the app would load at its start

    page = held_locks(backend.alias, limit=LOOKED_AT)
    yield Finding("holds", "ok", f"{page.total} held, under keys that begin with {backend.key('')!r}")
    gone = [hold.name for hold in page.rows if hold.state == GONE]
    endless = [hold.name for hold in page.rows if hold.remaining is None]
    for subject, names, hint in (
        ("holder gone", gone, "They end with their ttl; to free one now: manage.py locks release NAME."),
        ("no end", endless, "Such a lock was made without a ttl: manage.py locks release NAME."),
    ):
        some = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        yield Finding(subject, "warning" if names else "ok", f"{len(names)}: {some}", hint)
    if len(page.rows) < page.total:
        yield Finding("list", "unknown", f"more than {LOOKED_AT} holds: not all were looked at")


def _database(alias: str) -> Iterator[Finding]:
    connection = connections[alias]
    if connection.vendor not in VENDORS:
        yield Finding("fence", "unknown", f"{connection.display_name} can't check fencing tokens")
    elif Fence._meta.db_table in connection.introspection.table_names():
        yield _tokens(alias)
    else:
        text = f"there is no table {Fence._meta.db_table}: fenced=True fails on this database"
        hint = f"Run manage.py migrate --database={alias}, unless nothing is fenced here."
        yield Finding("fence", "warning", text, hint)
    if (query := TIMES.get(connection.vendor)) is not None:
        with connection.cursor() as cursor:
            asked = time.time()  # noqa: TID251 shown
            cursor.execute(query)
            (there,) = cursor.fetchone()
        answered = time.time()  # noqa: TID251 shown
        ahead = float(there) - (asked + answered) / 2
        text = f"its clock is {ahead:+.3f} s from this machine's (± {(answered - asked) / 2:.3f} s)"
        is_well = abs(ahead) <= CLOCKS_APART
        yield Finding("clock", "ok" if is_well else "warning", text, "Synchronize both by NTP.")


def _tokens(alias: str) -> Finding:
    """Look for tokens of a lock server whose clock ran ahead of this machine's."""
    here = time.time()  # noqa: TID251 shown
    ahead = Fence.objects.using(alias).filter(token__gt=int((here + CLOCKS_APART) * 1_000_000))
    names = list(ahead.order_by("-token").values_list("name", "token")[:3])
    if not names:
        return Finding("tokens", "ok", "no fencing token is ahead of this machine's clock")
    seconds, some = names[0][1] / 1_000_000 - here, ", ".join(name for name, _ in names)
    return Finding(
        "tokens",
        "warning",
        f"tokens of {ahead.count()} names are up to {seconds:.0f} s ahead of this machine's clock: {some}",
        "The clock of a lock server ran ahead: synchronize it by NTP. Should that server lose its data before"
        " the tokens have caught up, fenced work on these names is refused until then.",
    )
