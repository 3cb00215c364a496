"""Posting entries: levels are locked in key order, decided on, and then movements are inserted.

Nothing here updates a balance; the triggers do (`inventory/sql`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, NamedTuple

from django.db import IntegrityError, connections, transaction
from django.db.models import QuerySet

from inventory.conf import strategies_in_use
from inventory.exceptions import Busy, CauseUsed, InventoryError, Shortage, SoldOut, UnknownSku
from inventory.hooks import reach
from inventory.lines import Line, fingerprint
from inventory.models import Component, Entry, Item, Level, Movement, State
from inventory.signals import posted
from inventory.statements import prepared_cursor

Kind = Entry.Kind

MYSQL_DUPLICATE: Final = 1062


@dataclass(slots=True)
class Wanted:
    """An entry to be.

    Attributes:
        lines: what the caller asked for; with the kind they tell a repeated call from a different one.
        target: the state that units go to, where `take` picks the levels.
        location: take from it only.
        of: the entry that this one continues.
    """

    cause: str
    kind: Kind
    lines: tuple[Line, ...]
    target: State = State.COMMITTED
    location: int | None = None
    actor: str = ""
    of: int | None = None
    detail: tuple[object, ...] = ()
    fingerprint: int = field(init=False)

    def __post_init__(self) -> None:
        extra = [("", *self.detail)] if self.detail else []
        self.fingerprint = fingerprint(self.kind, [*self.lines, *extra])


@dataclass(frozen=True, slots=True)
class Posted:
    """An entry as it is in the ledger.

    Attributes:
        cause: names it. lines: what was asked for. id: of the entry.
        repeated: it was there before this call, which changed nothing.
        answer: what the caller's `write` returned the first time, as it was stored.
    """

    cause: str
    lines: tuple[Line, ...]
    id: int
    repeated: bool = False
    answer: Any = None


class Move(NamedTuple):
    """So many units of a level that go from one state to another."""

    level_id: int
    source: State
    target: State
    quantity: int


Outcome = Posted | InventoryError


def take(
    wanted: Sequence[Wanted], using: str, *, wait: float | None = None, skip_locked: bool = False
) -> list[Outcome]:
    """Take units that are for sale, in the current transaction, for each entry in turn.

    Args:
        wanted: entries of one target and location. using: the database.
        wait: seconds to wait for a locked row, until the transaction ends; None: as the connection says.
        skip_locked: leave out levels that others have locked (PostgreSQL).

    Returns:
        For each entry Posted, or why not: SoldOut, UnknownSku, CauseUsed.
    """
    vendor = connections[using].vendor
    outcomes: dict[int, Outcome] = {}
    left = list(enumerate(wanted))
    while left:
        once = {each.cause: (no, each) for no, each in reversed(left)}  # of those with one cause the first
        now = sorted(once.values(), key=lambda pair: pair[0])
        if vendor == "postgresql" and not skip_locked and (sku := _only_sku(now)):
            found, expirable = _take_plain(now, sku, using, wait)
        elif vendor == "postgresql":
            found, expirable = _take_by_statement(now, using, wait, skip_locked)
        else:
            found, expirable = _take_by_rows(now, using, wait)
        if expirable and _expire(expirable, using):
            found = {no: outcome for no, outcome in found.items() if not isinstance(outcome, SoldOut)}
        outcomes |= found
        left = [(no, each) for no, each in left if no not in outcomes]
    _announce(outcomes.values(), using, wanted[0].kind)
    return [outcomes[no] for no in range(len(wanted))]


def take_one(wanted: Wanted, using: str, *, wait: float | None = None) -> Posted:
    """Take the units of one entry; see `take`.

    Raises:
        SoldOut, UnknownSku, CauseUsed: nothing was taken, and the transaction goes on.
    """
    (outcome,) = take([wanted], using, wait=wait)
    if isinstance(outcome, InventoryError):
        raise outcome
    return outcome


def _expire(skus: Iterable[str], using: str) -> int:
    """End overdue reservations of these items; whatever others have locked is left to them."""
    from inventory.reservations import expire

    return expire(using, skus=skus, skip_locked=True)


# PostgreSQL: one statement.

_MOST_REMEMBERED: Final = 10_000
_not_plain: set[str] = set()
"""SKUs of bundles, and of items at several locations: the function is not asked for them first."""


def _only_sku(left: Sequence[tuple[int, Wanted]]) -> str | None:
    """Return the SKU where all entries are of one line of the same item, which may be a plain one."""
    sku = left[0][1].lines[0].sku
    alike = all(len(w.lines) == 1 and w.lines[0].sku == sku for _, w in left)
    return sku if alike and sku not in _not_plain else None


def _take_plain(
    left: list[tuple[int, Wanted]], sku: str, using: str, wait: float | None
) -> tuple[dict[int, Outcome], list[str]]:
    """Post what `inventory_take_plain` can; the statement decides where that is nothing."""
    entries = [{**_entry(no, w), "quantity": w.lines[0].quantity} for no, w in left]
    first = left[0][1]
    values = [json.dumps(entries), sku, first.location, int(first.target), _timeout(wait)]
    with prepared_cursor(using) as cursor:
        cursor.execute("SELECT inventory_take_plain(%s, %s, %s, %s::smallint, %s)", values)
        (ids,) = cursor.fetchone()
    if ids:
        return {no: Posted(w.cause, w.lines, ids[w.cause]) for no, w in left if w.cause in ids}, []
    found, expirable = _take_by_statement(left, using, wait, skip_locked=False)
    if ids is None and any(isinstance(outcome, Posted) for outcome in found.values()):
        if len(_not_plain) >= _MOST_REMEMBERED:
            _not_plain.clear()
        _not_plain.add(sku)
    return found, expirable


def _entry(no: int, wanted: Wanted) -> dict[str, Any]:
    return {
        "no": no,
        "cause": wanted.cause,
        "kind": wanted.kind,
        "fingerprint": wanted.fingerprint,
        "actor": wanted.actor,
    }


def _timeout(wait: float | None) -> str | None:
    """Return a wait in seconds as PostgreSQL's `lock_timeout` takes it."""
    return None if wait is None else f"{max(1, round(wait * 1000))}ms"


_LIMIT_WAIT: Final = (
    "AND (SELECT set_config('lock_timeout', %(wait)s, true)) IS NOT NULL\n     ORDER BY level.id"
)


@cache
def _statement(waits: bool, skips: bool) -> str:
    lines = files("inventory").joinpath("sql", "take.sql").read_text().splitlines()
    # On one line it is short enough for psycopg to remember how it is split: 4,096 characters.
    text = " ".join(line.strip() for line in lines if not line.startswith("--"))
    if waits:
        text = text.replace("ORDER BY level.id", _LIMIT_WAIT, 1)
    return (
        text.replace("FOR NO KEY UPDATE OF level", "FOR NO KEY UPDATE OF level SKIP LOCKED")
        if skips
        else text
    )


def _take_by_statement(
    left: list[tuple[int, Wanted]], using: str, wait: float | None, skip_locked: bool
) -> tuple[dict[int, Outcome], list[str]]:
    first = left[0][1]
    values: dict[str, str | int | None] = {
        "entries": json.dumps([_entry(no, w) for no, w in left]),
        "lines": json.dumps(
            [{"no": no, "sku": line.sku, "quantity": line.quantity} for no, w in left for line in w.lines]
        ),
        "target": int(first.target),
        "location": first.location,
        "wait": _timeout(wait),
    }
    with prepared_cursor(using) as cursor:
        cursor.execute(_statement(wait is not None, skip_locked), values)
        ids, known, unserved = cursor.fetchone()
    used = {no: rest for no, *rest in known or ()}
    refused, expirable = _refusals(unserved or ())
    contended = [no for no, *_, hopeful in unserved or () if hopeful]
    outcomes: dict[int, Outcome] = {}
    for no, w in left:
        if ids and w.cause in ids:
            outcomes[no] = Posted(w.cause, w.lines, ids[w.cause])
        elif no in used:
            outcomes[no] = _answered(w, *used[no])
        elif no not in refused:  # another transaction posted the cause between the look and the insert
            outcomes[no] = _look_up(w, using)
        elif no not in contended:
            outcomes[no] = refused[no]
        elif skip_locked:
            outcomes[no] = Busy("others have locked the stock", retry_after=0)
    if contended and not outcomes:  # the first was decided beside no other; those behind it are, next time
        outcomes[min(contended)] = refused[min(contended)]
    return outcomes, expirable


def _refusals(unserved: Iterable[Sequence[Any]]) -> tuple[dict[int, InventoryError], list[str]]:
    """Return why entries can't be posted, and the SKUs that overdue reservations may keep from them."""
    lines = defaultdict(list)
    for no, *line in unserved:
        lines[no].append(line)
    refused: dict[int, InventoryError] = {}
    expirable = []
    for no, found in lines.items():
        if unknown := [sku for sku, _, item_id, *_ in found if item_id is None]:
            refused[no] = UnknownSku(unknown)
            continue
        short = [Shortage(sku, units, there) for sku, units, _, there, *_ in found if there < units]
        # Beside other entries of the batch: each line alone would do.
        refused[no] = SoldOut(short or [Shortage(sku, units, there) for sku, units, _, there, *_ in found])
        expirable += [sku for sku, units, _, there, reserved, _ in found if there < units and reserved]
    return refused, expirable


def _answered(wanted: Wanted, id: int, kind: int, print_: int, answer: Any) -> Outcome:
    """Return the entry that has the cause already, or that it was used for something else."""
    if (kind, print_) != (wanted.kind, wanted.fingerprint):
        return CauseUsed(wanted.cause, f"{Kind(kind).label!s} (entry {id})")
    return Posted(wanted.cause, wanted.lines, id, repeated=True, answer=answer)


def look_up(wanted: Wanted, using: str) -> Outcome | None:
    """Return what became of the cause, by this transaction's snapshot, if anything."""
    return _find(wanted, Entry.objects.using(using))


def look_again(wanted: Wanted, using: str) -> Outcome | None:
    """Return what has become of the cause by now, whatever the snapshot.

    On MySQL only an insert tells for sure: a locking read of what isn't there would lock the gap, and two of
    those can't insert any more.
    """
    if connections[using].vendor != "mysql":
        return look_up(wanted, using)
    with transaction.atomic(using=using):
        found = None if _insert_entry(wanted, using) else _look_up(wanted, using)
        transaction.set_rollback(True, using)
    return found


def _find(wanted: Wanted, rows: Any) -> Outcome | None:
    found = rows.filter(cause=wanted.cause).values_list("id", "kind", "fingerprint", "answer").first()
    return None if found is None else _answered(wanted, *found)


def _look_up(wanted: Wanted, using: str) -> Outcome:
    rows = Entry.objects.using(using)
    if connections[using].vendor == "mysql":
        rows = rows.select_for_update()  # it is there, so no gap is locked; the snapshot may not show it
    found = _find(wanted, rows)
    if found is None:  # pragma: no cover - another transaction's entry made room for itself and went
        raise transaction.TransactionManagementError(f"the cause {wanted.cause!r} is neither free nor used")
    return found


# Any database: lock rows, decide, insert.


def _take_by_rows(
    left: list[tuple[int, Wanted]], using: str, wait: float | None
) -> tuple[dict[int, Outcome], list[str]]:
    outcomes: dict[int, Outcome] = {}
    expirable: list[str] = []
    with in_transaction(using):
        prepare_to_write(using)
        skus = {line.sku for _, w in left for line in w.lines}
        parts = _parts(skus, using)
        with _waiting_at_most(wait, using):
            locked = lock_levels(using, item__in={pk for each in parts.values() for pk in each})
        levels = _for_sale(locked, left[0][1])
        for no, w in left:
            outcome = look_up(w, using) or _take_lines(w, parts, levels, expirable, using)
            refused = isinstance(outcome, SoldOut | UnknownSku)
            outcomes[no] = (refused and look_again(w, using)) or outcome
    return outcomes, expirable


@contextmanager
def _waiting_at_most(seconds: float | None, using: str) -> Iterator[None]:
    """Limit the wait for a locked row on MySQL.

    SQLite waits by its connection's `timeout`.
    """
    connection = connections[using]
    if seconds is None or connection.vendor != "mysql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout")
        (before,) = cursor.fetchone()
        cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", [max(1, round(seconds))])
        try:
            yield
        finally:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", [before])


def _take_lines(
    wanted: Wanted,
    parts: Mapping[str, Mapping[int, int]],
    levels: Mapping[int, list[Level]],
    expirable: list[str],
    using: str,
) -> Outcome:
    if unknown := [line.sku for line in wanted.lines if line.sku not in parts]:
        return UnknownSku(unknown)
    demand: dict[int, int] = defaultdict(int)
    for sku, quantity in wanted.lines:
        for part, per_unit in parts[sku].items():
            demand[part] += quantity * per_unit
    there = {part: sum(level.for_sale for level in levels.get(part, ())) for part in demand}
    if any(there[part] < units for part, units in demand.items()):
        counts = [min(there[part] // per for part, per in parts[line.sku].items()) for line in wanted.lines]
        found = [Shortage(*line, count) for line, count in zip(wanted.lines, counts, strict=True)]
        short = [each for each in found if each.available < each.requested] or found
        expirable += [
            each.sku
            for each in short
            if any(level.reserved for p in parts[each.sku] for level in levels.get(p, ()))
        ]
        return SoldOut(short)
    moves = [move for part, units in demand.items() for move in _pick(levels[part], units, wanted.target)]
    return insert(wanted, moves, using)


def _pick(levels: Iterable[Level], units: int, target: State) -> Iterable[Move]:
    """Yield moves that take `units`, from one level after another; the copies in hand are kept true."""
    for level in levels:
        taken = min(units, level.for_sale)
        if taken:
            level.available -= taken
            units -= taken
            yield Move(level.pk, State.AVAILABLE, target, taken)


def _parts(skus: Iterable[str], using: str) -> dict[str, dict[int, int]]:
    """Return by SKU which items a unit of it takes, and how many of each."""
    items = dict(Item.objects.using(using).filter(sku__in=list(skus)).values_list("sku", "pk"))
    parts: dict[int, dict[int, int]] = defaultdict(dict)
    rows = Component.objects.using(using).filter(item__in=items.values())
    for item, part, quantity in rows.values_list("item_id", "part_id", "quantity"):
        parts[item][part] = quantity
    return {sku: parts.get(pk) or {pk: 1} for sku, pk in items.items()}


def _for_sale(levels: Iterable[Level], wanted: Wanted) -> dict[int, list[Level]]:
    by_item = defaultdict(list)
    for level in sorted(levels, key=lambda level: (level.location.priority, level.pk)):
        if level.location.active and wanted.location in (None, level.location_id):
            by_item[level.item_id].append(level)
    return by_item


def in_transaction(using: str) -> AbstractContextManager[Any]:
    """Return the current transaction, or a new one where none is open."""
    return nullcontext() if connections[using].in_atomic_block else transaction.atomic(using=using)


@contextmanager
def behind_sale(sale: int | None, using: str) -> Iterator[None]:
    """Open a transaction unless one is open, behind others that continue the sale.

    On MySQL its snapshot begins when the sale's entry is locked, so that it shows what they did, and reading
    that locks no gap in which two parcels would meet.
    """
    connection: Any = connections[using]
    fresh = connection.vendor == "mysql" and sale is not None and not connection.in_atomic_block
    with in_transaction(using):
        if fresh:
            Entry.objects.using(using).select_for_update().filter(pk=sale).values_list("pk").first()
        connection.inventory_fresh = fresh
        try:
            yield
        finally:
            connection.inventory_fresh = False


def prepare_to_write(using: str) -> None:
    """Have SQLite's write lock before anything is read: a snapshot of before it could not be written on."""
    if connections[using].vendor == "sqlite":
        with connections[using].cursor() as cursor:
            cursor.execute("DELETE FROM inventory_posting WHERE level_id = 0")


def lock_levels(using: str, *, skip_locked: bool = False, **which: Any) -> list[Level]:
    """Lock levels in key order until the transaction ends, and return them as they are now."""
    reach("waiting")
    connection = connections[using]
    rows = Level.objects.using(using).filter(**which)
    if connection.vendor == "mysql":  # locks what it reads on its way, in that order: no join, by key alone
        rows = Level.objects.using(using).filter(pk__in=list(rows.values_list("pk", flat=True)))
        rows = rows.prefetch_related("location")
    else:
        rows = rows.select_related("location")
    levels = list(for_update(rows, skip_locked=skip_locked, no_key=True).order_by("pk"))
    reach("locked")
    return levels


def for_update(rows: QuerySet[Any], *, skip_locked: bool = False, no_key: bool = False) -> QuerySet[Any]:
    """Lock these rows when they are read, not those that they are joined with; SQLite locks none."""
    connection = connections[rows.db]
    features = connection.features
    if not features.has_select_for_update:
        return rows
    return rows.select_for_update(
        of=("self",) if connection.vendor == "postgresql" else (),
        no_key=no_key and features.has_select_for_no_key_update,
        skip_locked=skip_locked and features.has_select_for_update_skip_locked,
    )


def as_of_now(rows: QuerySet[Any]) -> QuerySet[Any]:
    """On MySQL read what is committed by now, not the caller's snapshot."""
    connection: Any = connections[rows.db]
    fresh = getattr(connection, "inventory_fresh", False)
    past = connection.vendor == "mysql" and connection.in_atomic_block and not fresh
    return rows.select_for_update() if past else rows


def insert(wanted: Wanted, moves: Sequence[Move], using: str) -> Outcome:
    """Insert an entry and its movements; where the cause was used before, return what became of it.

    The caller has locked the levels and knows that the movements are possible.
    """
    entry_id = _insert_entry(wanted, using)
    if entry_id is None:
        return _look_up(wanted, using)
    Movement.objects.using(using).bulk_create(
        Movement(
            entry_id=entry_id,
            level_id=move.level_id,
            source=move.source,
            target=move.target,
            quantity=move.quantity,
        )
        for move in sorted(moves)
    )
    reach("written")
    return Posted(wanted.cause, wanted.lines, entry_id)


def post(wanted: Wanted, moves: Sequence[Move], using: str) -> Posted:
    """Insert an entry in the current transaction, and announce it after the commit.

    Raises:
        CauseUsed: the cause was used for something else.
    """
    outcome = insert(wanted, moves, using)
    if isinstance(outcome, InventoryError):
        raise outcome
    _announce([outcome], using, wanted.kind, moves)
    return outcome


def _insert_entry(wanted: Wanted, using: str) -> int | None:
    """Insert the entry's row and return its key; None where the cause is there already."""
    vendor = connections[using].vendor
    # MySQL's INSERT IGNORE ignores every other mistake as well; an error undoes only the statement there.
    conflict = {"mysql": "", "sqlite": " ON CONFLICT (cause) DO NOTHING"}.get(
        vendor, " ON CONFLICT (cause) DO NOTHING RETURNING id"
    )
    columns = "cause, kind, fingerprint, of_id, actor"
    sql = f"INSERT INTO inventory_entry ({columns}) VALUES (%s, %s, %s, %s, %s){conflict}"  # noqa: S608
    with connections[using].cursor() as cursor:
        try:
            cursor.execute(sql, [wanted.cause, int(wanted.kind), wanted.fingerprint, wanted.of, wanted.actor])
        except IntegrityError as error:
            if vendor == "mysql" and error.args[0] == MYSQL_DUPLICATE:
                return None
            raise
        if cursor.rowcount != 1:
            return None
        return int(cursor.fetchone()[0] if vendor == "postgresql" else cursor.lastrowid)


def store_answers(answers: Mapping[int, Any], using: str) -> None:
    """Keep what callers' `write` returned, by entry, so that a repeated call returns it again."""
    if connections[using].vendor == "postgresql":  # all of them at once, found by key
        statement = "UPDATE inventory_entry SET answer = %s::jsonb -> id::text WHERE id = ANY(%s::bigint[])"
        with prepared_cursor(using) as cursor:
            cursor.execute(statement, [json.dumps(answers), list(answers)])
        return
    with connections[using].cursor() as cursor:
        cursor.executemany(
            "UPDATE inventory_entry SET answer = %s WHERE id = %s",
            [(json.dumps(answer), pk) for pk, answer in answers.items()],
        )


def _announce(outcomes: Iterable[Outcome], using: str, kind: Kind, moves: Iterable[Move] = ()) -> None:
    """After the commit, open what strategies keep closed, and send the signal where anything listens."""
    new = [each for each in outcomes if isinstance(each, Posted) and not each.repeated]
    if not new:
        return
    skus = {line.sku for each in new for line in each.lines}
    listening = strategies_in_use(using) if kind in _MAY_ADD else []
    if not skus and (listening or posted.has_listeners()):  # all that was left of a sale
        levels = Level.objects.using(using).filter(pk__in={move.level_id for move in moves})
        skus = set(levels.values_list("item__sku", flat=True))
    for strategy in listening:
        transaction.on_commit(partial(strategy.stock_changed, skus), using=using, robust=True)
    if posted.has_listeners():
        send = partial(posted.send_robust, Entry, entries=[each.id for each in new], skus=skus, using=using)
        transaction.on_commit(send, using=using, robust=True)


_MAY_ADD = frozenset(Kind) - {Kind.SELL, Kind.RESERVE, Kind.SHIP}
"""Kinds after which there may be more for sale than before."""


def not_shipped(of: int, using: str) -> dict[int, int]:
    """Return by level how many units of a sale are still committed; its levels must be locked."""
    left: dict[int, int] = defaultdict(int)
    for level, source, target, quantity in movements_of(of, using).values_list(
        "level_id", "source", "target", "quantity"
    ):
        left[level] += quantity * ((target == State.COMMITTED) - (source == State.COMMITTED))
    return left


def movements_of(sale: int, using: str) -> QuerySet[Any]:
    """Return the movements of a sale and of what continued it."""
    later = as_of_now(Entry.objects.using(using).filter(of=sale))
    entries = [sale, *later.values_list("pk", flat=True)]
    return as_of_now(Movement.objects.using(using).filter(entry__in=entries))
