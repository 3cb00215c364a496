"""What the servers and databases say: `manage.py check --tag locking_live`, the one check that asks them.

What is wrong becomes a message, what is well goes to the log; the one lock that it takes is released.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    ("server", "error"): "locking.E101",
    ("memory", "warning"): "locking.W201",
    ("persistence", "error"): "locking.E202",
    ("persistence", "warning"): "locking.W202",
    ("replication", "error"): "locking.E203",
    ("replication", "warning"): "locking.W203",
    ("replication", "unknown"): "locking.I203",
    ("clock", "warning"): "locking.W204",
    ("token counters", "warning"): "locking.W205",
    ("other keys", "warning"): "locking.W206",
    ("permissions", "unknown"): "locking.I207",
    ("latency", "error"): "locking.E208",
    ("latency", "warning"): "locking.W208",
    ("holds", "error"): "locking.E209",
    ("holds", "unknown"): "locking.I209",
    ("holder gone", "warning"): "locking.W210",
    ("no end", "warning"): "locking.W211",
    ("list", "unknown"): "locking.I212",
    ("process liveness", "warning"): "locking.W213",
    ("database", "error"): "locking.E214",
    ("fence", "warning"): "locking.W215",
    ("fence", "unknown"): "locking.I215",
    ("tokens", "warning"): "locking.W216",
}
"""The id of a message, by the subject and verdict of its finding."""

OF_ANOTHER_BACKEND: Final = {"error": "locking.E299", "warning": "locking.W299", "unknown": "locking.I299"}

MESSAGES: Final = {"error": Error, "warning": Warning, "unknown": Info}

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
        yield from ((f"DATABASES[{alias!r}]", each) for each in _guarded("database", _database, alias))


def _message(place: str, finding: Finding) -> CheckMessage | None:
    """Return a finding as a message; None where it is well, or no matter while developing."""
    text = f"{place}: {finding.subject}: {finding.text}"
    if finding.verdict == "ok":
        logger.info("%s", text)
        return None
    subject = finding.subject.partition(" (")[0]
    if settings.DEBUG and (subject, finding.verdict) == ("persistence", "warning"):
        return None
    ident = IDS.get((subject, finding.verdict)) or OF_ANOTHER_BACKEND[finding.verdict]
    if subject.startswith("locking."):  # from a message of the backend's own
        text, ident = finding.text, subject
    return MESSAGES[finding.verdict](text, hint=finding.hint or None, id=ident)


def _guarded(
    subject: str, look: Callable[[Any], Iterable[Finding]], about: Any, hint: str = ""
) -> list[Finding]:
    """Return what `look` found; what it raised is a finding too."""
    try:
        return list(look(about))
    except (LockError, DatabaseError) as error:
        return [Finding(subject, "error", str(error).strip(), hint)]


def _diagnosed(backend: BaseLockBackend) -> list[Finding]:
    if isinstance(backend, Diagnosis):
        return backend.diagnose()
    return [finding_of(message) for message in backend.check(live=True)]


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


# --- a backend --------------------------------------------------------------------------------------------


def _backend(alias: str) -> list[Finding]:
    try:
        backend = locks[alias]
    except (ImproperlyConfigured, InvalidLockBackend):
        return []  # locking.E004 says why
    hint = "Start the server, or correct its address, user or password in LOCKING or CACHES."
    found = _guarded("server", _diagnosed, backend, hint)
    if any((each.subject, each.verdict) == ("server", "error") for each in found):
        return found  # the rest would only wait for it again
    return [*found, *_guarded("latency", _latencies, backend), *_guarded("holds", _holds, backend)]


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
    if p95 <= SLOW:
        return Finding("latency", "ok", text)
    return Finding("latency", "warning", text, "Look at the network and the load of the server.")


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
    yield _leak(
        "holder gone", gone, "They end with their ttl; to free one now: manage.py locks release NAME."
    )
    endless = [hold.name for hold in page.rows if hold.remaining is None]
    yield _leak("no end", endless, "Such a lock was made without a ttl: manage.py locks release NAME.")
    if len(page.rows) < page.total:
        yield Finding("list", "unknown", f"more than {LOOKED_AT} holds: not all were looked at")


def _leak(subject: str, names: Sequence[str], hint: str) -> Finding:
    some = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return (
        Finding(subject, "warning", f"{len(names)}: {some}", hint) if names else Finding(subject, "ok", "-")
    )


# --- a database -------------------------------------------------------------------------------------------


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
        yield _clock(float(there), asked, time.time())  # noqa: TID251 shown


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


def _clock(there: float, asked: float, answered: float) -> Finding:
    ahead = there - (asked + answered) / 2
    text = f"its clock is {ahead:+.3f} s from this machine's (± {(answered - asked) / 2:.3f} s)"
    if abs(ahead) <= CLOCKS_APART:
        return Finding("clock", "ok", text)
    return Finding("clock", "warning", text, "Synchronize both by NTP.")
