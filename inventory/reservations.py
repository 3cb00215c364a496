"""Units promised until a moment, by the database's clock: reserved, then sold, released or expired.

A reservation's lines are the movements of its entry. Its row is locked before its levels, and what has run
out is ended by `skip_locked`, which never waits: two of these can't wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Greatest, Least

from inventory.clock import Now
from inventory.exceptions import ReservationGone
from inventory.ledger import (
    Kind,
    Move,
    Posted,
    Wanted,
    as_of_now,
    for_update,
    in_transaction,
    lock_levels,
    look_again,
    post,
    prepare_to_write,
)
from inventory.lines import MAX_SECONDS, Line, check_cause, check_seconds
from inventory.models import Movement, Reservation, State

if TYPE_CHECKING:
    from inventory.api import Stock

BATCH = 500
"""Reservations that one transaction ends."""


@dataclass(frozen=True)
class Held:
    """A reservation.

    Attributes:
        id: names it from now on; `stock.held(id)` finds it again.
        lines: what is reserved. reference: the caller's own.
        expires_at: from then on the units may go to others. state: `live`, `sold`, `released` or `expired`.
    """

    id: UUID
    lines: tuple[Line, ...]
    reference: str
    expires_at: datetime
    state: str
    stock: Stock

    def extend(self, seconds: float | timedelta) -> Held:
        """Let it last for at least `seconds` from now; it is never shortened.

        Raises:
            ReservationGone: it has ended.
        """
        wanted = timedelta(seconds=check_seconds(seconds))
        using = self.stock.using
        latest = Least(Now() + wanted, F("created_at") + timedelta(seconds=MAX_SECONDS))
        live = Reservation.objects.using(using).filter(pk=self.id, state="live", expires_at__gt=Now())
        if not live.update(expires_at=Greatest("expires_at", latest)):
            raise ReservationGone(self.id, self.stock.held(self.id).state)
        return self.stock.held(self.id)

    def release(self, cause: str | None = None) -> None:
        """Give the units back before their time; releasing twice is releasing once.

        Raises:
            ReservationGone: it was sold.
        """
        using = self.stock.using
        with in_transaction(using):
            row = _lock(self.id, using)
            if row.state == Reservation.State.SOLD:
                raise ReservationGone(self.id, row.state)
            if row.state == Reservation.State.LIVE:
                _end([row], Reservation.State.RELEASED, using, cause)

    def sell(self, *, cause: str, write: Callable[[tuple[Line, ...]], Any] | None = None) -> Any:
        """Sell what is reserved: in your transaction, or with `write` in one of its own.

        Args:
            cause: names the sale. write: gets the lines, writes what belongs to the sale, and its value is
                returned, again when the call is repeated.

        Raises:
            ReservationGone: it has ended. CauseUsed: the cause named something else.
        """
        from inventory.strategies.base import Sale

        wanted = Wanted(check_cause(cause), Kind.SELL, self.lines, detail=(str(self.id),))
        sale = Sale(self.stock, wanted, write=write, post=self._sell)
        return sale.run_in_yours() if write is None else sale.run_by(None)

    def _sell(self, wanted: Wanted, wait: float | None) -> Posted:
        using = self.stock.using
        row = _lock(self.id, using)
        if row.state != Reservation.State.LIVE or row.overdue:
            known = look_again(wanted, using)
            if isinstance(known, Posted):
                return known
            raise known or ReservationGone(self.id, _state(row))
        moves = _moves([row], using)[row.entry_id]
        lock_levels(using, pk__in={level for level, *_ in moves})
        wanted.of = row.entry_id
        posted = post(
            wanted, [Move(level, State.RESERVED, State.COMMITTED, units) for level, _, units in moves], using
        )
        if not posted.repeated:
            Reservation.objects.using(using).filter(pk=self.id).update(state=Reservation.State.SOLD)
        return posted


def make(stock: Stock, posted: Posted, seconds: float, reference: str) -> Held:
    """Write the row of a reservation whose units have just been taken; a repeated call finds it."""
    if not posted.repeated:
        made = Reservation(
            entry_id=posted.id, reference=reference, expires_at=Now() + timedelta(seconds=seconds)
        )
        made.save(using=stock.using, force_insert=True)
    row = _with_overdue(stock.using).get(entry=posted.id)
    return Held(row.pk, posted.lines, row.reference, row.expires_at, _state(row), stock)


def find(stock: Stock, id: UUID | str) -> Held:
    """Return a reservation as it is now; what has run out is expired, whether it was swept or not.

    Raises:
        ReservationGone: there never was one.
    """
    row = _with_overdue(stock.using).filter(pk=id).first()
    if row is None:
        raise ReservationGone(id, None)
    units: dict[str, int] = defaultdict(int)
    for _, sku, quantity in _moves([row], stock.using)[row.entry_id]:
        units[sku] += quantity
    lines = tuple(sorted(Line(sku, quantity) for sku, quantity in units.items()))
    return Held(row.pk, lines, row.reference, row.expires_at, _state(row), stock)


def expire(
    using: str, *, skus: Iterable[str] | None = None, skip_locked: bool = False, limit: int = BATCH
) -> int:
    """End reservations whose time has run out, and return how many.

    Args:
        using: the database. skus: of these items only. limit: reservations that one call ends.
        skip_locked: leave out those that others are at work on, and never wait.
    """
    due = Reservation.objects.using(using).filter(state="live", expires_at__lte=Now())
    if skus is not None:
        of_items = Movement.objects.filter(entry=OuterRef("entry")).filter(
            Q(level__item__sku__in=list(skus)) | Q(level__item__part_of__item__sku__in=list(skus))
        )
        due = due.filter(Exists(of_items))
    with in_transaction(using):
        prepare_to_write(using)
        rows = list(for_update(due.order_by("expires_at"), skip_locked=True)[:limit])
        return _end(rows, Reservation.State.EXPIRED, using, skip_locked=skip_locked)


def expire_all(using: str = "default", *, limit: int = 100) -> int:
    """End every overdue reservation, `limit` per transaction; return how many.

    For a timer: `manage.py stock expire`, or `inventory.tasks`. Sales don't wait for it: each ends those of
    the items it needs. The next run handles rows that others have locked.
    """
    total = 0
    while ended := expire(using, skip_locked=True, limit=limit):
        total += ended
    return total


def _end(
    rows: Sequence[Any], state: str, using: str, cause: str | None = None, *, skip_locked: bool = False
) -> int:
    """Give back the units of locked live reservations; return how many were ended."""
    if not rows:
        return 0
    moves = _moves(rows, using)
    levels = {level for each in moves.values() for level, *_ in each}
    locked = {level.pk for level in lock_levels(using, skip_locked=skip_locked, pk__in=levels)}
    kind = Kind.EXPIRE if state == Reservation.State.EXPIRED else Kind.RELEASE
    ended = []
    for row in rows:
        back = moves[row.entry_id]
        if all(level in locked for level, *_ in back):
            wanted = Wanted(cause or f"{state}:{row.pk}", kind, _lines(back), of=row.entry_id)
            post(
                wanted,
                [Move(level, State.RESERVED, State.AVAILABLE, units) for level, _, units in back],
                using,
            )
            ended.append(row.pk)
    Reservation.objects.using(using).filter(pk__in=ended).update(state=state)
    return len(ended)


def _moves(rows: Iterable[Any], using: str) -> dict[int, list[tuple[int, str, int]]]:
    """Return (level, SKU, units) of what reservations hold, by their entry."""
    found: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    movements = as_of_now(Movement.objects.using(using).filter(entry__in=[row.entry_id for row in rows]))
    for entry, *move in movements.values_list("entry_id", "level_id", "level__item__sku", "quantity"):
        found[entry].append((move[0], move[1], move[2]))
    return found


def _lines(moves: Iterable[tuple[int, str, int]]) -> tuple[Line, ...]:
    return tuple(sorted(Line(sku, units) for _, sku, units in moves))


def _lock(id: UUID, using: str) -> Any:
    prepare_to_write(using)
    row = for_update(_with_overdue(using).filter(pk=id)).first()
    if row is None:
        raise ReservationGone(id, None)
    return row


def _with_overdue(using: str) -> QuerySet[Any]:
    rows: QuerySet[Any] = Reservation.objects.using(using).annotate(overdue=Q(expires_at__lte=Now()))
    return rows


def _state(row: Any) -> str:
    return "expired" if row.state == "live" and row.overdue else str(row.state)
