"""Replacing old movements by opening balances, so that history doesn't grow without end.

Entries stay: a cause that was used is used for good. Movements of sales with units left to ship, and of
live reservations, stay too. Each batch is a transaction of its own and changes no sum, so that an interrupted
run is simply run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from django.db import connections, transaction
from django.db.models import Count, Max, Min

from inventory.ledger import Kind, prepare_to_write
from inventory.models import Entry, Level, Movement, Reservation, State
from inventory.triggers import allow_changes

BATCH: Final = 2000
"""Movements that one transaction replaces."""

STATES: Final = (State.AVAILABLE, State.RESERVED, State.COMMITTED, State.UNAVAILABLE)
CONTINUES: Final = (Kind.SHIP, Kind.CANCEL, Kind.RESTOCK, Kind.ADJUST)


def archive(before: datetime, using: str = "default") -> Iterator[tuple[int, int]]:
    """Replace old movements; yield (level, movements gone) for each batch."""
    last = _last_entry(before, using)
    for level in _levels_with_many(last, using):
        after: int | None = 0
        while after is not None:
            gone, after = _archive_batch(level, after, last, using)
            if gone:
                yield level, gone


def _last_entry(before: datetime, using: str) -> int:
    """Return the last entry before this time, by halving: keys grow."""
    entries = Entry.objects.using(using)
    ends = entries.aggregate(low=Min("pk"), high=Max("pk"))
    if ends["low"] is None:
        return 0
    low, high = ends["low"] - 1, ends["high"]
    while low < high:
        middle = (low + high + 1) // 2
        key, created = entries.filter(pk__lte=middle).order_by("-pk").values_list("pk", "created_at")[0]
        low, high = (middle, high) if created < before else (low, min(key, middle) - 1)
    return int(low)


def _levels_with_many(last: int, using: str) -> Iterator[int]:
    """Yield levels that have more old movements than opening ones would be."""
    begin = 0
    levels = Level.objects.using(using)
    while keys := list(levels.filter(pk__gt=begin).order_by("pk").values_list("pk", flat=True)[:1000]):
        old = Movement.objects.using(using).filter(level__gte=keys[0], level__lte=keys[-1], entry__lte=last)
        many = old.order_by().values("level").annotate(count=Count("pk")).filter(count__gt=len(STATES))
        yield from many.values_list("level", flat=True)
        begin = keys[-1]


def _archive_batch(level: int, after: int, last: int, using: str) -> tuple[int, int | None]:
    """Return how many movements went, and where to go on, if anywhere."""
    with transaction.atomic(using=using):
        prepare_to_write(using)
        rows = Movement.objects.using(using).filter(level=level, pk__gt=after, entry__lte=last).order_by("pk")
        if connections[using].features.has_select_for_update:
            rows = rows.select_for_update()
        batch = list(rows[:BATCH])
        if not batch:
            return 0, None
        open_ = _still_open({row.entry_id for row in batch}, last, using)
        old = [row for row in batch if row.entry_id not in open_]
        if len(old) > len(STATES):
            _replace(level, old, using)
        return max(0, len(old) - len(STATES)), batch[-1].pk


def _replace(level: int, old: Sequence[Any], using: str) -> None:
    """Make the first of these movements opening ones, and delete the rest."""
    net = {
        state: sum(row.quantity * ((row.target == state) - (row.source == state)) for row in old)
        for state in STATES
    }
    opening = Entry.objects.using(using).create(cause=f"opening:{level}:{uuid4().hex}", kind=Kind.OPENING)
    changes = [
        (State.OUTSIDE, state, units) if units > 0 else (state, State.OUTSIDE, -units)
        for state, units in net.items()
        if units
    ]
    movements = Movement._base_manager.using(using)
    # Changed in their place, for inserting would add them to the balances.
    with allow_changes(using):
        for row, (source, target, units) in zip(old, changes, strict=False):
            movements.filter(pk=row.pk).update(entry=opening, source=source, target=target, quantity=units)
        movements.filter(pk__in=[row.pk for row in old[len(changes) :]])._raw_delete(using)


def _still_open(entries: Iterable[int], last: int, using: str) -> set[int]:
    """Return entries of live reservations and of sales not done with."""
    kinds = {
        key: (kind, of)
        for key, kind, of in Entry.objects.using(using)
        .filter(pk__in=list(entries))
        .values_list("pk", "kind", "of")
    }
    live = Reservation.objects.using(using).filter(entry__in=list(kinds), state=Reservation.State.LIVE)
    kept = set(live.values_list("entry", flat=True))
    sale_of = {
        key: key if kind == Kind.SELL else of
        for key, (kind, of) in kinds.items()
        if kind == Kind.SELL or (of and kind in CONTINUES)
    }
    unfinished = _unfinished(set(sale_of.values()), last, using)
    return kept | {key for key, sale in sale_of.items() if sale in unfinished}


def _unfinished(sales: set[int], last: int, using: str) -> set[int]:
    """Return sales with units left to ship, or continued since."""
    sale_of = {sale: sale for sale in sales}
    unfinished = set()
    for key, sale in Entry.objects.using(using).filter(of__in=list(sales)).values_list("pk", "of"):
        sale_of[key] = sale
        if key > last:
            unfinished.add(sale)
    left: dict[int, int] = defaultdict(int)
    moves = Movement.objects.using(using).filter(entry__in=list(sale_of))
    for entry, source, target, quantity in moves.values_list("entry", "source", "target", "quantity"):
        left[sale_of[entry]] += quantity * ((target == State.COMMITTED) - (source == State.COMMITTED))
    return unfinished | {sale for sale, units in left.items() if units}
