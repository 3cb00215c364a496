"""Comparing balances with the ledger, and setting right what differs: the ledger is believed.

What is reserved is compared with the live reservations, too. A range of levels is compared in one statement,
so that no sale comes between a balance and its movements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Case, F, Max, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Coalesce

from inventory.ledger import lock_levels, prepare_to_write
from inventory.models import BALANCES, Audit, Level, Movement, Reservation, State
from inventory.triggers import allow_changes

RANGE: Final = 1000
"""Levels that one statement compares."""

MARGIN: Final = 10_000
"""Movements before the last audit's that are looked at again: theirs may have been committed after it."""


@dataclass(frozen=True)
class Difference:
    """A level whose balance isn't the sum of its movements, or isn't what is promised.

    Attributes:
        sku, location: of the level. balance: which one. has: what the level says. ledger: what it should say.
        level_id: the level's key. by: who says so, the movements or the live reservations.
    """

    level_id: int
    sku: str
    location: str
    balance: str
    has: int
    ledger: int
    by: str = "movements"

    def __str__(self) -> str:
        """Say it in a line."""
        what = f"{self.balance} is {self.has}, and {self.ledger} by its {self.by}"
        return f"{self.sku} at {self.location}: {what}"


@dataclass(frozen=True)
class Report:
    """What an audit found.

    Attributes:
        checked: levels that were compared. differences: all of them.
    """

    checked: int
    differences: tuple[Difference, ...]


def audit(using: str = "default", *, everything: bool = False) -> Report:
    """Compare the levels that moved since the last audit, or every level.

    A level that was written past the triggers and hasn't moved since is found by `everything` alone.
    """
    last = Audit.objects.using(using).order_by("-pk").first()
    highest = Movement.objects.using(using).aggregate(last=Max("pk"))["last"] or 0
    since = 0 if everything or last is None else last.movement_id - MARGIN
    checked, found = 0, list[Difference]()
    for levels in _ranges(since, using):
        checked += levels.count()
        found += differences(levels)
    Audit.objects.using(using).create(movement_id=highest, checked=checked, differences=len(found))
    return Report(checked, tuple(found))


def _ranges(since: int, using: str) -> Iterator[QuerySet[Level]]:
    """Yield levels in ranges: all, or those with movements after `since`."""
    levels = Level.objects.using(using)
    if since > 0:
        moved = Movement.objects.using(using).filter(pk__gt=since).values_list("level_id", flat=True)
        keys = sorted(set(moved.iterator()))
        for begin in range(0, len(keys), RANGE):
            yield levels.filter(pk__in=keys[begin : begin + RANGE])
        return
    last = 0
    while keys := list(levels.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:RANGE]):
        yield levels.filter(pk__range=(keys[0], keys[-1]))
        last = keys[-1]


PROMISED: Final = "live reservations"


def differences(levels: QuerySet[Level]) -> Iterator[Difference]:
    """Yield every balance that isn't the sum of its level's movements, or of its live reservations."""
    live = Q(movements__entry__reservation__state=Reservation.State.LIVE)
    rows = levels.annotate(
        **{f"ledger_{name}": _sum(name) for name in BALANCES},
        promised=Coalesce(Sum("movements__quantity", filter=live), 0),
    )
    right = Q(**{name: F(f"ledger_{name}") for name in BALANCES}) & Q(reserved=F("promised"))
    compared = [(name, f"ledger_{name}", "movements") for name in BALANCES]
    compared.append(("reserved", "promised", PROMISED))
    for row in (
        rows.filter(~right)
        .order_by("pk")
        .values("pk", "item__sku", "location__code", *BALANCES, *rows.query.annotations)
    ):
        place = row["pk"], row["item__sku"], row["location__code"]
        for balance, sum_, by in compared:
            if row[balance] != row[sum_]:
                yield Difference(*place, balance, row[balance], int(row[sum_]), by)


def _sum(balance: str) -> Any:
    state, quantity = State[balance.upper()], F("movements__quantity")
    change = Case(
        When(movements__target=state, then=quantity),
        When(movements__source=state, then=Value(0) - quantity),
        default=0,
    )
    return Coalesce(Sum(change), 0)


@dataclass(frozen=True)
class Reconciled:
    """What became of a level that differed.

    Attributes:
        differences: of the level. believed: it now says what the ledger says; else it has to be counted.
    """

    differences: tuple[Difference, ...]
    believed: bool


def reconcile(using: str = "default") -> Iterator[Reconciled]:
    """Set each balance that differs to the sum of its movements.

    One level at a time. No movement is made up. Where the ledger says what can't be, such as fewer than no
    units, nothing is written: count the item. Reservations are left as they are.
    """
    for levels in _ranges(0, using):
        for key in sorted({each.level_id for each in differences(levels) if each.by != PROMISED}):
            yield from _believe_ledger(key, using)


def _believe_ledger(key: int, using: str) -> Iterator[Reconciled]:
    wrong: tuple[Difference, ...] = ()
    try:
        with transaction.atomic(using=using):
            prepare_to_write(using)
            lock_levels(using, pk=key)
            found = differences(Level.objects.using(using).filter(pk=key))
            wrong = tuple(each for each in found if each.by != PROMISED)
            if wrong:
                with allow_changes(using, key):
                    values = {each.balance: each.ledger for each in wrong}
                    Level.objects.using(using).filter(pk=key).update(**values)
    except IntegrityError:
        yield Reconciled(wrong, believed=False)
    else:
        if wrong:
            yield Reconciled(wrong, believed=True)
