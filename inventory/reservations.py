"""Stock promised for a while: reserved by a basket, then used by its order, released, or expired.

A reservation changes what is `reserved`, of the product and by the customer, and nothing else: the units are
still on hand. Rows are locked in one order, products first (by primary key), then their reservations, then
the customers' counts, so two baskets can't wait for each other.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest, Least, Now

from inventory.checkpoints import checkpoint
from inventory.domain import Line, merge_lines
from inventory.limits import Units, count_units, uncount_units
from inventory.low_stock import notice_low_stock
from inventory.models import Product, StockReservation
from inventory.rows import decide, in_key_order, lock_products, lock_rows, sale_transaction
from inventory.segments import fold
from inventory.services import forget_copies

State = StockReservation.State

MAX_TTL = timedelta(days=7)
"""Stock that nobody can buy for longer than this isn't reserved, it is gone."""


class ReservationGone(Exception):
    """The reservation can't be used any more: it expired, was released or used, or never was.

    Args:
        basket: the id that `reserve` returned. state: what became of it; None: there never was one.
    """

    def __init__(self, basket: uuid.UUID, state: str | None = None) -> None:
        self.basket, self.state = basket, state
        what = f"is {state}" if state else "is unknown"
        super().__init__(f"the reservation {basket} {what}; reserve again")


@dataclass(frozen=True, slots=True)
class Reserved:
    """What was promised.

    Attributes:
        basket: names it from now on.
        lines: merged and sorted by SKU.
        expires_at: from then on the units may go to anybody.
        state: live, used, released or expired.
        scope: the authenticated caller whose reservation it is; empty: anybody's who knows its id.
    """

    basket: uuid.UUID
    lines: tuple[Line, ...]
    expires_at: datetime
    state: str = State.LIVE.value
    scope: str = ""


def reserve(
    lines: Iterable[Line],
    ttl: timedelta,
    customer: str = "",
    *,
    scope: str = "",
    wait: float | None = 10.0,
    record: Callable[[Reserved], None] | None = None,
) -> Reserved:
    """Promise the units of `lines` to one basket, all or nothing, committed on return.

    Args:
        lines: the basket; duplicates are merged, a generator is consumed once.
        ttl: how long the promise holds, more than nothing and at most `MAX_TTL`.
        customer: whose basket it is; needed for products with a limit a customer.
        scope: the authenticated caller who reserves. Code that looks it up for a caller compares it.
        wait: seconds to wait for a row that others have locked.
        record: writes what belongs to the reservation, in its transaction; what it raises undoes everything.

    Raises:
        InvalidCart, UnknownProduct: see the checkout. ValueError: a ttl that can't be one.
        LimitReached: the customer may not have so many, what is bought and reserved already included.
        SoldOut: too few are available; before it is said, units in segments are put back into the product's
            row, and reservations that have run out are freed.
        Busy: the rows stayed locked.

    Example:
        >>> reserve([Line("mug", 2)], timedelta(minutes=10), customer="ann")  # doctest: +SKIP
        Reserved(basket=UUID('…'), lines=(Line(sku='mug', quantity=2),), expires_at=…)
    """
    _require_ttl(ttl)
    cart = merge_lines(lines)
    with sale_transaction(wait):
        products = lock_products(cart)
        _make_available(cart, products)
        decide(cart, products)
        units = in_key_order(cart, products)
        _count(customer, units)
        made = _write(cart, ttl, customer, scope, units)
        if record is not None:
            record(made)
        checkpoint("written")
        transaction.on_commit(lambda: forget_copies(products.values()), robust=True)
        transaction.on_commit(lambda: _notice(products.values()), robust=True)
    return made


def _require_ttl(ttl: timedelta) -> None:
    if not timedelta(0) < ttl <= MAX_TTL:
        raise ValueError(f"a reservation's ttl must be more than 0 and at most {MAX_TTL}, not {ttl}")


def _write(cart: tuple[Line, ...], ttl: timedelta, customer: str, scope: str, units: Units) -> Reserved:
    """Write the reservation; the database dates it, and counts the ttl from the same moment."""
    basket = uuid.uuid4()
    for product, quantity in units:
        Product.objects.filter(pk=product.pk).update(
            reserved=F("reserved") + quantity, version=F("version") + 1
        )
    rows = StockReservation.objects.bulk_create(
        StockReservation(
            basket=basket,
            product=product,
            quantity=quantity,
            customer=customer,
            scope=scope,
            expires_at=Now() + ttl,
        )
        for product, quantity in units
    )
    return Reserved(basket, cart, rows[0].created_at + ttl, scope=scope)


def _count(customer: str, units: Units) -> None:
    """Count reserved units against the customer's limit; overdue reservations are ended if need be."""
    if count_units(customer, units, reserved=True) is None:
        return
    _expire([product for product, _ in units], customer=customer)
    if refused := count_units(customer, units, reserved=True):
        raise refused


def _notice(products: Iterable[Product]) -> None:
    told = [product.pk for product in products if product.low_stock_threshold is not None]
    if told:
        notice_low_stock(told)


def find(basket: uuid.UUID) -> Reserved:
    """Return a reservation as it is now; one whose time has run out is expired, whether it was swept or not.

    Raises:
        ReservationGone: there never was such a basket.
    """
    rows = list(
        StockReservation.objects.filter(basket=basket)
        .select_related("product")
        .annotate(overdue=Q(state=State.LIVE, expires_at__lte=Now()))
    )
    if not rows:
        raise ReservationGone(basket)
    lines = tuple(sorted(Line(row.product.sku, row.quantity) for row in rows))
    state = State.EXPIRED if rows[0].overdue else State(rows[0].state)
    return Reserved(basket, lines, rows[0].expires_at, state.value, rows[0].scope)


def extend(basket: uuid.UUID, ttl: timedelta, *, wait: float | None = 10.0) -> Reserved:
    """Let a live reservation last for at least `ttl` from now; it is never shortened.

    Args:
        basket: what `reserve` returned.
        ttl: more than nothing and at most `MAX_TTL`. In all a reservation lasts for `MAX_TTL` at most.
        wait: seconds to wait for a row that others have locked.

    Raises:
        ReservationGone: it has ended, or its time has run out. ValueError: a ttl that can't be one.
        Busy: the rows stayed locked.
    """
    _require_ttl(ttl)
    rows = StockReservation.objects.filter(basket=basket, state=State.LIVE)
    with sale_transaction(wait):
        lock_rows(rows.values_list("product_id", flat=True))
        latest = Least(Now() + ttl, F("created_at") + MAX_TTL)
        if not rows.filter(expires_at__gt=Now()).update(expires_at=Greatest(F("expires_at"), latest)):
            raise _gone(basket)
        checkpoint("written")
    return find(basket)


def release(
    basket: uuid.UUID, *, record: Callable[[], object] | None = None, wait: float | None = 10.0
) -> None:
    """Give a basket's units back before their time.

    Args:
        basket: what `reserve` returned.
        record: writes what belongs to the release, in its transaction.
        wait: seconds to wait for a row that others have locked; None: without end.

    Raises:
        ReservationGone: it isn't live any more; units of one whose time had run out are free as well.
        Busy: the rows stayed locked.
    """
    rows = StockReservation.objects.filter(basket=basket)
    with sale_transaction(wait):
        released = _end(rows.filter(expires_at__gt=Now()), State.RELEASED)
        if not released:
            _end(rows, State.EXPIRED)  # if it is overdue; that stays, so it is refused behind the commit
        elif record is not None:
            record()
    if not released:
        raise _gone(basket)


def expire_overdue(skus: Iterable[str] | None = None, *, limit: int = 500, wait: float | None = None) -> int:
    """Free the units of reservations whose time has run out; return how many reservations that were.

    Args:
        skus: of these products only; None: of all.
        limit: reservations to end in one transaction; call it again when it returns as many.
        wait: seconds to wait for a row that others have locked; None: without end.

    Raises:
        Busy: the rows stayed locked; nothing was freed.
    """
    overdue = StockReservation.objects.filter(state=State.LIVE, expires_at__lte=Now())
    if skus is not None:
        overdue = overdue.filter(product__sku__in=list(skus))
    chosen = list(overdue.order_by("expires_at").values_list("pk", flat=True)[:limit])
    if not chosen:
        return 0
    with sale_transaction(wait):
        # Compared again under the lock: meanwhile one of them may have been extended.
        still = StockReservation.objects.filter(pk__in=chosen, expires_at__lte=Now())
        return len(_end(still, State.EXPIRED))


def use(basket: uuid.UUID, record: Callable[[Mapping[str, Product]], None], *, wait: float | None) -> None:
    """Turn a reservation into a sale: deduct its units and call `record`, in one transaction.

    Args:
        basket: what `reserve` returned.
        record: writes the order, given the products by SKU, as in `Sale`.
        wait: seconds to wait for a row that others have locked.

    Raises:
        ReservationGone: it isn't live, or its time has run out.
    """
    with sale_transaction(wait):
        ended = _end(StockReservation.objects.filter(basket=basket, expires_at__gt=Now()), State.USED)
        if not ended:
            raise _gone(basket)
        for row in ended:
            # The units were promised, so they are there: the CHECK would refuse anything else.
            Product.objects.filter(pk=row.product_id).update(on_hand=F("on_hand") - row.quantity)
        checkpoint("written")
        record({row.product.sku: row.product for row in ended})


def customer_of(basket: uuid.UUID) -> str:
    """Return who reserved `basket`; empty for nobody in particular."""
    return StockReservation.objects.filter(basket=basket).values_list("customer", flat=True).first() or ""


def _end(rows: QuerySet[StockReservation], state: StockReservation.State) -> list[StockReservation]:
    """End those of `rows` that are live, and take their units off what is reserved of the product and by the
    customer; products are locked first.
    """
    lock_rows(rows.filter(state=State.LIVE).values_list("product_id", flat=True))
    live = list(rows.filter(state=State.LIVE).select_related("product").select_for_update(of=("self",)))
    StockReservation.objects.filter(pk__in=[row.pk for row in live]).update(state=state)
    freed: Counter[int] = Counter()
    for row in live:
        freed[row.product_id] += row.quantity
    for pk in sorted(freed):
        Product.objects.filter(pk=pk).update(reserved=F("reserved") - freed[pk], version=F("version") + 1)
    for row in sorted(live, key=lambda row: (row.customer, row.product_id)):
        uncount_units(row.customer, [(row.product, row.quantity)], reserved=True)
    if state is not State.USED:
        transaction.on_commit(lambda: forget_copies({row.product for row in live}), robust=True)
        transaction.on_commit(lambda: _notice({row.product for row in live}), robust=True)
    return live


def _make_available(lines: Sequence[Line], products: Mapping[str, Product]) -> None:
    """Where a line would be refused, fetch what lies in segments, then free what has run out.

    The rows of `products` are locked. In this order: who sells from a segment waits for customers' counts.
    """
    for fetch in (fold, _expire):
        short = [products[line.sku] for line in lines if products[line.sku].available < line.quantity]
        if short:
            fetch(short)
            for product in short:
                product.refresh_from_db(fields=["on_hand", "reserved", "version"])


def _expire(products: Iterable[Product], **whose: str) -> None:
    """End what has run out of these products, of one customer if that is given."""
    overdue = StockReservation.objects.filter(expires_at__lte=Now(), **whose)
    _end(overdue.filter(product__in=list(products)), State.EXPIRED)


def _gone(basket: uuid.UUID) -> ReservationGone:
    row = StockReservation.objects.filter(basket=basket).first()
    if row is None:
        return ReservationGone(basket)
    return ReservationGone(basket, State.EXPIRED if row.state == State.LIVE else row.state)
