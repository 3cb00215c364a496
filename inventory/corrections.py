"""What happens to units beside being sold: they come in, are shipped, counted, broken, moved, held back.

Each locks the levels, decides, and posts one entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from inventory.exceptions import InvalidLines, InventoryError, NotThere, UnknownLocation, UnknownSku
from inventory.ledger import (
    Kind,
    Move,
    Posted,
    Wanted,
    as_of_now,
    behind_sale,
    in_transaction,
    lock_levels,
    look_again,
    look_up,
    movements_of,
    not_shipped,
    post,
    prepare_to_write,
)
from inventory.lines import Line
from inventory.models import Component, Count, Entry, Item, Level, Movement, State
from inventory.strategies.base import Understood

if TYPE_CHECKING:
    from inventory.api import Stock

Decide = Callable[[], Sequence[Move]]


def _once(stock: Stock, wanted: Wanted, decide: Decide) -> Posted:
    """Post what `decide` returns, unless the cause was used before; `decide` locks and may refuse."""
    with Understood(wanted.cause, connections[stock.using]), behind_sale(wanted.of, stock.using):
        prepare_to_write(stock.using)
        known = look_up(wanted, stock.using)
        if isinstance(known, InventoryError):
            raise known
        if known is not None:
            return known
        try:
            return post(wanted, decide(), stock.using)
        except NotThere:  # another call with this cause may have been first
            known = look_again(wanted, stock.using)
            if isinstance(known, Posted):
                return known
            raise


def bring(
    stock: Stock, kind: Kind, lines: tuple[Line, ...], cause: str, location: str | None, target: State,
    actor: str, of: str | None
) -> Posted:  # fmt: skip
    """Bring units from outside into `target`; of a sale no more than were shipped."""
    sale = None if of is None else _sale(stock, of)
    wanted = Wanted(
        cause, kind, lines, target, actor=actor, of=sale, detail=(location or "", int(target), of or "")
    )

    def decide() -> list[Move]:
        levels = _levels(stock, lines, location)
        if sale is not None:
            _refuse_beyond(
                lines, _still_out(sale, stock.using), "were shipped of that sale and haven't come back"
            )
        return [Move(levels[line.sku][0].pk, State.OUTSIDE, target, line.quantity) for line in lines]

    return _once(stock, wanted, decide)


def continue_sale(
    stock: Stock, kind: Kind, lines: tuple[Line, ...] | None, cause: str, of: str, target: State, actor: str
) -> Posted:
    """Take committed units of a sale to `target`: shipped, cancelled."""
    sale = _sale(stock, of)
    wanted = Wanted(cause, kind, lines or (), target, actor=actor, of=sale, detail=(of,))

    def decide() -> list[Move]:
        return _from_sale(stock, sale, lines, target)

    return _once(stock, wanted, decide)


def _from_sale(stock: Stock, sale: int, lines: tuple[Line, ...] | None, target: State) -> list[Move]:
    """Lock the levels of a sale and return the moves of its committed units, or of `lines` of them."""
    which = Movement.objects.using(stock.using).filter(entry=sale).values_list("level_id", flat=True)
    skus = dict(Level.objects.using(stock.using).filter(pk__in=set(which)).values_list("pk", "item__sku"))
    levels = lock_levels(stock.using, pk__in=skus)
    left = {level: units for level, units in sorted(not_shipped(sale, stock.using).items()) if units}
    if lines is None:
        if not left:
            raise NotThere(", ".join(sorted(set(skus.values()))), 1, 0, "are left of that sale")
        moves = [Move(level, State.COMMITTED, target, units) for level, units in left.items()]
        return _present(moves, levels, skus)
    totals: dict[str, int] = defaultdict(int)
    for level, units in left.items():
        totals[skus[level]] += units
    _refuse_beyond(lines, totals, "are left of that sale")
    moves = []
    for line in lines:
        mine = {level: units for level, units in left.items() if skus[level] == line.sku}
        moves += [
            Move(level, State.COMMITTED, target, units) for level, units in _spread(line.quantity, mine)
        ]
    return _present(moves, levels, skus)


def _present(moves: list[Move], levels: Iterable[Level], skus: Mapping[int, str]) -> list[Move]:
    """Refuse to take out of a level what isn't there: units may be sold before they come in."""
    on_hand = {level.pk: level.on_hand for level in levels}
    for level, _, target, units in moves:
        if target == State.OUTSIDE and units > on_hand[level]:
            raise NotThere(skus[level], units, max(0, on_hand[level]), "are there; receive the others first")
    return moves


def count(stock: Stock, line: Line, cause: str, location: str | None, actor: str) -> Posted:
    """Make what is there what was counted; promised units can't be counted away."""
    wanted = Wanted(cause, Kind.COUNT, (line,), actor=actor, detail=(location or "",))
    expected: list[tuple[int, int]] = []

    def decide() -> list[Move]:
        level = _only(_levels(stock, [line], location)[line.sku], line.sku)
        difference = line.quantity - level.on_hand
        expected.append((level.pk, level.on_hand))
        if -difference > max(0, level.available):
            promised = level.on_hand - max(0, level.available)
            raise NotThere(
                line.sku, level.on_hand - line.quantity, max(0, level.available),
                f"aren't promised: {line.quantity} were counted, {promised} are sold, reserved or held back; "
                f"cancel or adjust(of=…) what can't be shipped, then count again",
            )  # fmt: skip
        return _signed(level.pk, difference, State.AVAILABLE)

    with in_transaction(stock.using):
        posted = _once(stock, wanted, decide)
        if not posted.repeated:
            level_id, there = expected[-1]
            Count.objects.using(stock.using).create(
                entry_id=posted.id, level_id=level_id, counted=line.quantity, expected=there
            )
        return posted


def adjust(
    stock: Stock, line: Line, cause: str, of: str | None, location: str | None, state: str, actor: str
) -> Posted:
    """Add units to a state of a level or take them off it, or off a sale."""
    states = {"available": State.AVAILABLE, "unavailable": State.UNAVAILABLE}
    if state not in states:
        raise InvalidLines(
            f"state is 'available' or 'unavailable', not {state!r}; of= takes units off a sale"
        )
    if of is not None and line.quantity > 0:
        raise InvalidLines(
            f"units can only be taken off a sale, so the difference is below 0, not {line.quantity}"
        )
    sale = None if of is None else _sale(stock, of)
    wanted = Wanted(
        cause, Kind.ADJUST, (line,), actor=actor, of=sale, detail=(location or "", state, of or "")
    )

    def decide() -> Sequence[Move]:
        if sale is not None:
            return _from_sale(stock, sale, (Line(line.sku, -line.quantity),), State.OUTSIDE)
        level = _only(_levels(stock, [line], location)[line.sku], line.sku)
        there = max(0, getattr(level, state))
        if -line.quantity > there:
            raise NotThere(line.sku, -line.quantity, there, f"are {state} there")
        return _signed(level.pk, line.quantity, states[state])

    return _once(stock, wanted, decide)


def move(stock: Stock, lines: tuple[Line, ...], cause: str, source: str, target: str, actor: str) -> Posted:
    """Take units out at one location and in at another."""
    wanted = Wanted(cause, Kind.MOVE, lines, actor=actor, detail=(source, target))

    def decide() -> list[Move]:
        levels = _levels(stock, lines, None)
        moves = []
        for line in lines:
            here = _at(levels[line.sku], source, line.sku)
            if line.quantity > max(0, here.available):
                raise NotThere(line.sku, line.quantity, max(0, here.available), f"are for sale at {source!r}")
            moves.append(Move(here.pk, State.AVAILABLE, State.OUTSIDE, line.quantity))
            there = _at(levels[line.sku], target, line.sku)
            moves.append(Move(there.pk, State.OUTSIDE, State.AVAILABLE, line.quantity))
        return moves

    return _once(stock, wanted, decide)


def hold_back(
    stock: Stock, lines: tuple[Line, ...], cause: str, location: str | None, undo: bool, actor: str
) -> Posted:
    """Take units from available to unavailable, or back."""
    source, target = (State.UNAVAILABLE, State.AVAILABLE) if undo else (State.AVAILABLE, State.UNAVAILABLE)
    wanted = Wanted(cause, Kind.HOLD, lines, actor=actor, detail=(location or "", undo))

    def decide() -> list[Move]:
        levels = _levels(stock, lines, location)
        moves = []
        for line in lines:
            level = _only(levels[line.sku], line.sku)
            there = max(0, getattr(level, source.name.lower()))
            if line.quantity > there:
                raise NotThere(line.sku, line.quantity, there, f"are {source.name.lower()} there")
            moves.append(Move(level.pk, source, target, line.quantity))
        return moves

    return _once(stock, wanted, decide)


def bundle(stock: Stock, sku: str, parts: tuple[Line, ...]) -> None:
    """Write what selling a unit of `sku` takes, in place of what it took before."""
    with transaction.atomic(using=stock.using):
        items = Item.objects.using(stock.using)
        found = dict(items.filter(sku__in=[line.sku for line in parts]).values_list("sku", "pk"))
        if missing := [line.sku for line in parts if line.sku not in found and line.sku != sku]:
            raise UnknownSku(missing)
        item, _ = items.get_or_create(sku=sku)
        found[sku] = item.pk
        nested = Component.objects.using(stock.using).filter(item__in=found.values()).exclude(item=item)
        if nested.exists():
            raise InvalidLines(f"a part of {sku!r} is a bundle itself; name that one's parts instead")
        item.components.all().delete()
        Component.objects.using(stock.using).bulk_create(
            Component(item=item, part_id=found[line.sku], quantity=line.quantity) for line in parts
        )


def _sale(stock: Stock, cause: str) -> int:
    """Return the key of a sale's entry."""
    rows = as_of_now(Entry.objects.using(stock.using).filter(cause=cause, kind=Kind.SELL))
    found = rows.values_list("pk", flat=True).first()
    if found is None:
        raise NotThere(
            "of", 1, 0, f"sales have the cause {cause!r}; of= names the cause that sell() was given"
        )
    return int(found)


def _still_out(sale: int, using: str) -> dict[str, int]:
    """Return by SKU how many units of a sale are shipped and haven't come back."""
    rows = movements_of(sale, using).filter(entry__kind__in=(Kind.SHIP, Kind.RESTOCK))
    out: dict[str, int] = defaultdict(int)
    for sku, target, quantity in rows.values_list("level__item__sku", "target", "quantity"):
        out[sku] += quantity if target == State.OUTSIDE else -quantity
    return out


def _levels(stock: Stock, lines: Iterable[Line], location: str | None) -> dict[str, list[Level]]:
    """Lock the levels of the lines, and return them by SKU, where units are kept first in front."""
    skus = [line.sku for line in lines]
    items = dict(Item.objects.using(stock.using).filter(sku__in=skus).values_list("sku", "pk"))
    if missing := [sku for sku in skus if sku not in items]:
        raise UnknownSku(missing)
    where: dict[str, Any] = {} if location is None else {"location__code": location}
    locked = lock_levels(stock.using, item__in=items.values(), **where)
    found = {
        sku: sorted(
            (level for level in locked if level.item_id == pk),
            key=lambda each: (each.location.priority, each.pk),
        )
        for sku, pk in items.items()
    }
    if empty := [sku for sku, levels in found.items() if not levels]:
        where_ = f" at {location!r}" if location else ""
        raise UnknownLocation(f"{empty[0]!r} has no level{where_}; stock.receive() makes it")
    return found


def _only(levels: Sequence[Level], sku: str) -> Level:
    if len(levels) > 1:
        codes = ", ".join(level.location.code for level in levels)
        raise UnknownLocation(f"{sku!r} is kept at several locations ({codes}); name one by location=")
    return levels[0]


def _at(levels: Iterable[Level], code: str, sku: str) -> Level:
    for level in levels:
        if level.location.code == code:
            return level
    raise UnknownLocation(f"{sku!r} isn't kept at {code!r}")


def _refuse_beyond(lines: Iterable[Line], there: dict[str, int], what: str) -> None:
    for line in lines:
        if line.quantity > there.get(line.sku, 0):
            raise NotThere(line.sku, line.quantity, there.get(line.sku, 0), what)


def _spread(units: int, levels: dict[int, int]) -> Iterator[tuple[int, int]]:
    for level, there in levels.items():
        if units:
            yield level, min(units, there)
            units -= min(units, there)


def _signed(level: int, difference: int, state: State) -> list[Move]:
    if difference == 0:
        return []
    source, target = (State.OUTSIDE, state) if difference > 0 else (state, State.OUTSIDE)
    return [Move(level, source, target, abs(difference))]
