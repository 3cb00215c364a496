"""The public verbs. `from inventory import stock` is `Stock("default")`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.db import connections

from inventory.conf import AliasSettings, make_strategy, read_alias, stocks
from inventory.exceptions import InvalidLines, UnknownLocation, UnknownSku
from inventory.lines import Line, Lines, check_cause, check_quantity, check_seconds, check_sku, read_lines

if TYPE_CHECKING:
    from inventory.ledger import Posted
    from inventory.models import Level
    from inventory.reservations import Held
    from inventory.strategies.base import Strategy

DEFAULT_LOCATION = "default"
"""Where units come in unless a location is named."""

Write = Callable[..., Any]
WriteMany = Callable[..., Sequence[Any]]


def _for_coroutines(verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(self: Stock, *args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(getattr(self, verb))(*args, **kwargs)

    call.__name__, call.__doc__ = f"a{verb}", f"Do what `{verb}` does, in a coroutine."
    return call


class Stock:
    """The stock of one alias of `INVENTORY`.

    Args:
        alias: of the setting. strategy, database: instead of the alias's own.

    Every verb takes a `cause`, which names the change and makes it repeatable: the same cause with the same
    lines answers as the first time and changes nothing, with others it raises CauseUsed.

    Example:
        >>> from inventory import stock
        >>> stock.receive("mug", 10, cause="po-17")  # doctest: +SKIP
        >>> stock.sell({"mug": 2}, cause="order-1")  # doctest: +SKIP
    """

    def __init__(
        self, alias: str = "default", *, strategy: str | None = None, database: str | None = None
    ) -> None:
        self.alias = alias
        self._overrides = {
            key: value for key, value in (("strategy", strategy), ("database", database)) if value is not None
        }
        stocks.add(self)

    @cached_property
    def settings(self) -> AliasSettings:
        """The alias's settings, read at first use."""
        from dataclasses import replace

        found = read_alias(self.alias)
        if self._overrides.get("strategy", found.strategy) != found.strategy:
            found = replace(found, options={})  # they are the other strategy's
        return replace(found, **self._overrides) if self._overrides else found  # type: ignore[arg-type]  # texts only

    @property
    def using(self) -> str:
        """The database's alias."""
        return self.settings.database

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy that leads sales with `write=`."""
        return make_strategy(self.settings)

    # What there is.

    @overload
    def available(self, sku: str, *, location: str | None = None) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def available(self, sku: Iterable[str], *, location: str | None = None) -> dict[str, int]: ...
    def available(self, sku: str | Iterable[str], *, location: str | None = None) -> int | dict[str, int]:
        """Return the units for sale now, of one item or of several; one query.

        Args:
            sku: one SKU or an iterable of them. location: count units at this one only.

        Raises:
            UnknownSku: there is no such item.
        """
        from inventory.selectors import units_for_sale

        wanted = [check_sku(sku)] if isinstance(sku, str) else [check_sku(each) for each in sku]
        found = units_for_sale(wanted, self.using, location=self._location(location))
        if missing := [each for each in wanted if each not in found]:
            raise UnknownSku(missing)
        return found[sku] if isinstance(sku, str) else found

    def levels(self, sku: str) -> list[Level]:
        """Return where the units of an item are, and in which state; one query."""
        from inventory.models import Level

        rows = (
            Level.objects.using(self.using)
            .filter(item__sku=check_sku(sku))
            .select_related("location", "item")
        )
        return list(rows.order_by("location__priority", "pk"))

    # Units come in.

    def receive(
        self, sku: Lines | str, quantity: int | None = None, *, cause: str, location: str = DEFAULT_LOCATION,
        actor: str = ""
    ) -> Posted:  # fmt: skip
        """Take units in for sale; items, levels and the location are made where they are new.

        Args:
            sku, quantity: one item's units, or `{"mug": 10, "pen": 5}`. cause: of this delivery.
            location: code of where they come in. actor: who did it, for the ledger.

        Raises:
            InvalidLines: lines that can't be. CauseUsed: the cause was used for something else.
        """
        from inventory.ledger import Kind
        from inventory.models import State

        lines = read_lines(sku, quantity)
        self._make_levels([line.sku for line in lines], location)
        return self._bring(Kind.RECEIVE, lines, cause, location, State.AVAILABLE, actor)

    def restock(
        self, sku: Lines | str, quantity: int | None = None, *, cause: str, of: str | None = None,
        location: str | None = None, damaged: bool = False, actor: str = ""
    ) -> Posted:  # fmt: skip
        """Take shipped units back: for sale, or damaged ones as unavailable.

        Args:
            of: the cause of the sale that they come back from; no more than it shipped is accepted.
            location: where they come back to; None: where they are kept first. damaged: not for sale.

        Raises:
            UnknownSku, UnknownLocation, CauseUsed. NotThere: the sale shipped fewer.
        """
        from inventory.ledger import Kind
        from inventory.models import State

        lines = read_lines(sku, quantity)
        target = State.UNAVAILABLE if damaged else State.AVAILABLE
        return self._bring(Kind.RESTOCK, lines, cause, location, target, actor, of)

    # Units are sold.

    def sell(
        self, lines: Lines, *, cause: str, write: Write | None = None, write_many: WriteMany | None = None,
        location: str | None = None, actor: str = "", data: Any = None
    ) -> Any:  # fmt: skip
        """Sell units, all lines or none.

        Without `write`, in the transaction that is open: one statement, exact by itself, which rolls back
        with it. With `write` the alias's strategy leads: it opens the transaction, takes the units, calls
        yours in it, commits, and then lets go of whatever it locked.

        Args:
            lines: `{"mug": 2, "pen": 1}`, or pairs. cause: of the sale, such as `f"order-{order.pk}"`.
            write: gets the lines, writes what belongs to the sale; its value is returned. It is a model
                instance, or JSON, or None: a repeated call returns it again.
            write_many: gets the lines of several sales and returns a value each; for `combined`.
            location: sell from this one only. data: what `write` or `write_many` finds as `lines.data`.

        Returns:
            What `write` returned; without it the ledger's entry, as Posted.

        Raises:
            SoldOut: every short line is named. UnknownSku, InvalidLines, CauseUsed. Busy: try again.
            TransactionError: the strategy must open the transaction, and one is open.
            DatabaseUnavailable: nothing was sold. OutcomeUnknown: repeat with the same cause.

        Example:
            >>> with transaction.atomic():  # doctest: +SKIP
            ...     order = Order.objects.create()
            ...     stock.sell({"mug": 2}, cause=f"order-{order.pk}")
        """
        from inventory.ledger import Kind, Wanted
        from inventory.strategies.base import Sale

        checked = read_lines(lines)
        for name, given in (("write", write), ("write_many", write_many)):
            if given is not None and not callable(given):
                raise InvalidLines(f"{name} is a function that gets the lines, not {given!r}")
        wanted = Wanted(
            check_cause(cause), Kind.SELL, checked, location=self._location(location), actor=actor
        )
        sale = Sale(self, wanted, write=write, write_many=write_many, data=data)
        if write is None and write_many is None:
            return sale.run_in_yours()
        return sale.run_by(self.strategy)

    def ship(self, lines: Lines | None = None, *, cause: str, of: str, actor: str = "") -> Posted:
        """Send units of a sale on their way; without `lines` all that are left of it.

        Args:
            of: the cause of the sale. lines: a part of it. cause: of the parcel.

        Raises:
            NotThere: fewer are left of the sale. UnknownSku, CauseUsed.
        """
        from inventory.ledger import Kind
        from inventory.models import State

        return self._continue_sale(Kind.SHIP, lines, cause, of, State.OUTSIDE, actor)

    def cancel(self, lines: Lines | None = None, *, cause: str, of: str, actor: str = "") -> Posted:
        """Put units of a sale that weren't shipped back for sale; without `lines` all of them.

        Raises:
            NotThere: fewer are left of the sale. UnknownSku, CauseUsed.
        """
        from inventory.ledger import Kind
        from inventory.models import State

        return self._continue_sale(Kind.CANCEL, lines, cause, of, State.AVAILABLE, actor)

    # Units are promised.

    def reserve(
        self, lines: Lines, *, seconds: float | timedelta, reference: str = "", cause: str | None = None,
        location: str | None = None, actor: str = ""
    ) -> Held:  # fmt: skip
        """Promise units for a while, all lines or none; they are free again when the time is over.

        Args:
            lines: `{"mug": 2}`. seconds: how long, at most a week.
            reference: the caller's own, to find it by.
            cause: makes the call repeatable; None: each call makes a reservation.

        Raises:
            SoldOut, UnknownSku, InvalidLines, CauseUsed.
        """
        from inventory import reservations
        from inventory.ledger import Kind, Wanted, in_transaction, take_one
        from inventory.models import State
        from inventory.strategies.base import Understood

        lasting = check_seconds(seconds)
        name = f"reserve:{uuid4()}" if cause is None else check_cause(cause)
        where = self._location(location)
        wanted = Wanted(name, Kind.RESERVE, read_lines(lines), State.RESERVED, where, actor)
        with Understood(name, connections[self.using]), in_transaction(self.using):
            return reservations.make(self, take_one(wanted, self.using), lasting, str(reference))

    def held(self, id: UUID | str) -> Held:
        """Return the reservation with this id.

        Raises:
            ReservationGone: there never was one.
        """
        from inventory import reservations

        return reservations.find(self, id)

    # Corrections.

    def count(
        self, sku: str, counted: int, *, cause: str, location: str | None = None, actor: str = ""
    ) -> Posted:
        """Enter how many units of an item were counted on the shelves; the difference is for sale, or gone.

        Args:
            counted: units that are there, promised ones among them. location: where; None: the only one.

        Raises:
            NotThere: fewer were counted than are promised to customers; cancel or adjust those first.
            UnknownSku, UnknownLocation, InvalidLines, CauseUsed.
        """
        from inventory import corrections

        check_quantity(check_sku(sku), counted, least=0)
        return corrections.count(self, Line(sku, counted), check_cause(cause), location, actor)

    def adjust(
        self, sku: str, difference: int, *, cause: str, of: str | None = None, location: str | None = None,
        state: str = "available", actor: str = ""
    ) -> Posted:  # fmt: skip
        """Add units to the stock, or take them off it: found, broken, lost.

        Args:
            difference: units, negative for those that are gone. state: `available` or `unavailable`.
            of: the cause of a sale whose unshipped units are gone. location: where.

        Raises:
            NotThere: fewer are there. UnknownSku, UnknownLocation, InvalidLines, CauseUsed.
        """
        from inventory import corrections

        check_quantity(check_sku(sku), difference if difference != 0 else "0", least=-(10**9))
        return corrections.adjust(self, Line(sku, difference), check_cause(cause), of, location, state, actor)

    def move(self, lines: Lines, *, cause: str, source: str, target: str, actor: str = "") -> Posted:
        """Move units that are for sale from one location to another; promised ones stay.

        Raises:
            NotThere: fewer are for sale there. UnknownSku, UnknownLocation, CauseUsed.
        """
        from inventory import corrections

        checked = read_lines(lines)
        if source == target:
            raise InvalidLines(f"units are moved between two locations, not from {source!r} to itself")
        self._make_levels([line.sku for line in checked], target, new_items=False)
        return corrections.move(self, checked, check_cause(cause), source, target, actor)

    def hold_back(
        self, lines: Lines, *, cause: str, location: str | None = None, undo: bool = False, actor: str = ""
    ) -> Posted:
        """Take units off sale that stay where they are; `undo` puts them back.

        Raises:
            NotThere: fewer are in that state. UnknownSku, UnknownLocation, CauseUsed.
        """
        from inventory import corrections

        return corrections.hold_back(self, read_lines(lines), check_cause(cause), location, undo, actor)

    def bundle(self, sku: str, parts: Lines) -> None:
        """Make selling a unit of `sku` take its parts: a bundle, or a quota that several items share.

        An item that has units of its own as well names itself among the parts.

        Raises:
            UnknownSku: a part that there isn't.
        """
        from inventory import corrections

        corrections.bundle(self, check_sku(sku), read_lines(parts))

    # Shared by the verbs.

    def _bring(
        self, kind: Any, lines: tuple[Line, ...], cause: str, location: str | None, target: Any, actor: str,
        of: str | None = None
    ) -> Posted:  # fmt: skip
        from inventory import corrections

        return corrections.bring(self, kind, lines, check_cause(cause), location, target, actor, of)

    def _continue_sale(
        self, kind: Any, lines: Lines | None, cause: str, of: str, target: Any, actor: str
    ) -> Posted:
        from inventory import corrections

        checked = None if lines is None else read_lines(lines)
        return corrections.continue_sale(
            self, kind, checked, check_cause(cause), check_cause(of), target, actor
        )

    def _location(self, code: str | None) -> int | None:
        from inventory.models import Location

        if code is None:
            return None
        found = Location.objects.using(self.using).filter(code=code).values_list("pk", flat=True).first()
        if found is None:
            raise UnknownLocation(
                f"there is no location {code!r}; make it in the admin, or receive units there"
            )
        return found

    def _make_levels(self, skus: Sequence[str], location: str, *, new_items: bool = True) -> None:
        from inventory.models import Item, Level, Location

        place, _ = Location.objects.using(self.using).get_or_create(code=location)
        items = Item.objects.using(self.using)
        missing = set(skus) - set(items.filter(sku__in=skus).values_list("sku", flat=True))
        if missing and not new_items:
            raise UnknownSku(sorted(missing))
        items.bulk_create([Item(sku=sku) for sku in sorted(missing)], ignore_conflicts=True)
        known = items.filter(sku__in=skus).exclude(levels__location=place).order_by("pk")
        levels = [Level(item_id=pk, location=place) for pk in known.values_list("pk", flat=True)]
        Level.objects.using(self.using).bulk_create(levels, ignore_conflicts=True)

    # The same verbs for coroutines, as Django has them: each runs in the thread of synchronous code.

    areceive = _for_coroutines("receive")
    asell = _for_coroutines("sell")
    areserve = _for_coroutines("reserve")
    aheld = _for_coroutines("held")
    arestock = _for_coroutines("restock")
    acount = _for_coroutines("count")
    aadjust = _for_coroutines("adjust")
    aship = _for_coroutines("ship")
    acancel = _for_coroutines("cancel")
    aavailable = _for_coroutines("available")


stock = Stock()


def stock_of(database: str | None) -> Stock:
    """Return the default stock, in the database that a row was read from."""
    return stock if database in (None, stock.using) else _stock_in(database)


@cache
def _stock_in(database: str) -> Stock:
    return Stock(database=database)
