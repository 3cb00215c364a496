"""What the page says of each strategy, in the visitor's language; what fixes which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from orders.lab.pages.limits import variants
from orders.lab.race.plan import Plan, choose
from orders.lab.strategies import STRATEGIES

IDEAS = {
    "lost_update": _("Read the stock, subtract in Python, save: the second one overwrites the first."),
    "row_lock": _("SELECT … FOR UPDATE: the row is locked before it is read, until the commit."),
    "version_cas": _("Write only if the version is still the one that was read; else begin again."),
    "negative_stock": _("Check in Python, subtract in SQL: the check is old when the subtraction comes."),
    "conditional_update": _("UPDATE … WHERE on_hand >= n: the database checks and subtracts in one step."),
    "unsorted_locks": _("Lock row by row as the basket lists them: two baskets wait for each other."),
    "ordered_locks": _("Lock the rows in one order for everybody: anyone who waits, waits in the queue."),
    "lock_table": _("A row of a table of locks, locked for the length of the transaction."),
    "unique_row": _("Insert a row that may be there once only; anyone who can't, waits."),
    "advisory_lock": _("pg_advisory_xact_lock: PostgreSQL's own lock by number, until the commit."),
    "local_lock": _("threading.Lock: fine in one process; two processes have two locks."),
    "early_release": _("A good lock, let go before the commit: the next one can't see the sale yet."),
    "lock_after_read": _("A good lock, taken after the stock was read: what was read is old by then."),
    "unsorted_redis_locks": _(
        "Distributed locks, one by one as the basket lists them: LockDeadlock ends it."
    ),
    "database_lock": _("A row of locking_row with a lease: a distributed lock without Redis."),
    "redlock": _("A lease on the majority of several Redis servers, and a last check by the database."),
    "redis_lock": _("This project's lock: the commit comes before the release, and a watchdog renews it."),
    "expired_lease": _("A good lock whose lease ends before the work does: the next one comes in beside it."),
    "fenced_lock": _(
        "The lock and a fencing token: the database refuses a holder that a newer one has overtaken."
    ),
    "setnx_expire_del": _("SETNX, EXPIRE, DEL: it ends too early, and then the wrong lock is deleted."),
    "setnx_getset": _("SETNX with a time in it, GETSET to take over: two can take over at once."),
    "redis_spin_lock": _("SET NX PX with a token, polling; the database checks again when it writes."),
    "redis_script": _("Stock in Redis, taken by one atomic script; the database has the last word."),
    "redis_gate": _("Redis refuses, the database sells, a ledger remembers what lies between the two."),
    "segmented": _("Stock in Redis in several segments, each with its own ledger; a cart may span them."),
    "segmented_rows": _("Stock in several rows: take from any that nobody has locked, or gather from all."),
    "segmented_locks": _("Stock in several rows with a distributed lock each: skip those that are taken."),
    "unit_rows": _("A row per unit: delete any that nobody has locked, and claim it with the order."),
    "combined": _("Many checkouts in one commit: the first one sells for all who wait behind it."),
    "async_reserve": _("Reserve without waiting for the disk, then order with waiting for it."),
    "zookeeper_lock": _("A distributed lock on ZooKeeper: who waits waits in the queue behind one other."),
    "etcd_lock": _("A distributed lock on etcd, whose revision is the fencing token."),
}
"""One sentence each. A strategy that isn't here shows the idea of its docstring."""


BROKEN, DATABASE, REDIS, COORDINATION, PROCESS = (
    _("broken on purpose"),
    _("database"),
    _("Redis"),
    _("coordination services"),
    _("one process"),
)
GROUPS = (BROKEN, DATABASE, REDIS, COORDINATION, PROCESS)

_GROUP_OF = {
    "redis_lock": REDIS, "fenced_lock": REDIS, "redis_spin_lock": REDIS, "redis_script": REDIS,
    "redis_gate": REDIS, "segmented": REDIS, "segmented_locks": REDIS, "redlock": REDIS,
    "zookeeper_lock": COORDINATION, "etcd_lock": COORDINATION, "local_lock": PROCESS,
}  # fmt: skip
"""Where a sound strategy keeps its lock or its stock; the database, where it isn't named here."""


@dataclass(frozen=True)
class Puzzle:
    """A task for the step mode: what to bring about (a name of `steps.js`), with which strategy."""

    goal: str
    strategy: str
    text: str


@dataclass
class Shown:
    """A line of the matrix: what may be raced, whether it is sound there, its idea, and what fixes it."""

    name: str
    strategy: str
    sound: bool
    idea: str
    fix: str = ""


def strategies() -> list[Shown]:
    """Everything that can be raced, each broken one before what fixes it."""
    known = {variant.name: variant for variant in choose("all", STRATEGIES, Plan())}
    found = [
        Shown(name, known[name].strategy, known[name].sound, _idea(known[name].strategy))
        for name in variants()
    ]
    fix = ""
    for shown in reversed(found):
        fix = shown.name if shown.sound else fix
        shown.fix = "" if shown.sound else fix
    return found


def grouped(shown: Sequence[Shown]) -> list[tuple[str, list[Shown]]]:
    """The strategies by what they rely on, in the order of `GROUPS`; an empty group is left out."""
    found = [(group, [one for one in shown if _group(one) is group]) for group in GROUPS]
    return [(str(group), members) for group, members in found if members]


def _group(shown: Shown) -> Any:
    return _GROUP_OF.get(shown.strategy, DATABASE) if shown.sound else BROKEN


def puzzles() -> list[Puzzle]:
    """The tasks of the step mode, easiest first."""
    return [
        Puzzle("twice", "lost_update", gettext("Sell the last piece twice.")),
        Puzzle("twice", "negative_stock", gettext("Sell it twice, and bring the page below zero.")),
        Puzzle("wait", "row_lock", gettext("Make B wait for A.")),
        Puzzle("again", "version_cas", gettext("Let one buyer be overtaken and begin again.")),
        Puzzle("circle", "unsorted_locks", gettext("Make both wait for each other.")),
        Puzzle("circle", "unsorted_redis_locks", gettext("Do it where no database sees it.")),
    ]


def _idea(name: str) -> str:
    if name in IDEAS:
        return str(IDEAS[name])
    text = " ".join((STRATEGIES[name].__doc__ or "").removeprefix("Idea:").split())
    return text.partition(". ")[0].rstrip(".") + "."
