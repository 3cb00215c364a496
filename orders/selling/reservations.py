"""Reservations: `inventory` promises the units, a basket keeps whose they are and at what price."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

from django.db.models.functions import Now

from inventory import Line, ReservationGone, stock
from inventory.hooks import reach
from inventory.reservations import Held
from orders.models import Basket
from orders.selling.cart import merge_lines
from orders.selling.catalog import Bill, priced
from orders.selling.limits import refuse_reserving_beyond_limits
from orders.transactions import change

MAX_TTL = timedelta(days=7)
"""Units that can't be bought for longer than this aren't reserved, they are gone."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation as the shop shows it.

    Attributes:
        id: names it. state: `live`, `sold`, `released` or `expired`. lines: what is reserved.
        prices: agreed, by SKU. total, currency: what an order of it costs.
        customer, scope: who reserved, and which authenticated caller; empty: any caller that knows its id.
    """

    id: UUID
    state: str
    expires_at: datetime
    lines: tuple[Line, ...]
    prices: dict[str, str]
    total: Decimal
    currency: str
    customer: str
    scope: str


def reserve(
    lines: Iterable[tuple[str, int]],
    ttl: timedelta,
    customer: str = "",
    *,
    scope: str = "",
    record: Callable[[Reserved], object] | None = None,
) -> Reserved:
    """Promise units for a while at today's prices, all lines or none.

    Args:
        lines, customer, scope: as for a checkout. ttl: how long, a week at most.
        record: writes what belongs to it, in its transaction.

    Raises:
        InvalidLines, UnknownSku, NotForSale, MixedCurrencies, SoldOut, LimitReached: a final answer.
        Busy, DatabaseUnavailable: nothing was reserved. OutcomeUnknown: repeat it with the same key.
    """
    cart = merge_lines(lines)
    cause = f"reserve:{uuid4()}"
    with change(cause):
        bill = priced(cart)
        held = stock.reserve(cart, seconds=ttl, reference=customer[:200], cause=cause)
        refuse_reserving_beyond_limits(customer, bill)
        made = _shown(held, _keep(held, bill, customer, scope))
        if record is not None:
            record(made)
        reach("written")
    return made


def find(reservation: UUID) -> Reserved:
    """Return a reservation as it is now.

    Raises:
        ReservationGone: there never was one, or it was forgotten.
    """
    basket = Basket.objects.filter(pk=reservation).first()
    if basket is None:
        raise ReservationGone(reservation, None)
    return _shown(stock.held(reservation), basket)


def extend(reservation: UUID, ttl: timedelta) -> Reserved:
    """Let it last for `ttl` from now at least; the same call again does no harm.

    Raises:
        ReservationGone: it has ended. Busy, DatabaseUnavailable, OutcomeUnknown: as `reserve`.
    """
    with change(f"extend:{reservation}"):
        stock.held(reservation).extend(ttl)
    return find(reservation)


def release(reservation: UUID) -> None:
    """Give the units back before their time; releasing twice is releasing once.

    Raises:
        ReservationGone: it was sold. Busy, DatabaseUnavailable, OutcomeUnknown: as `reserve`.
    """
    with change(f"release:{reservation}"):
        stock.held(reservation).release()


def forget_old_baskets() -> int:
    """Delete the baskets of reservations that ended long ago; return how many."""
    old = Basket.objects.filter(created_at__lt=Now() - 2 * MAX_TTL)
    return old.delete()[0]


def _keep(held: Held, bill: Bill, customer: str, scope: str) -> Basket:
    lines = [
        {"sku": product.sku, "product": product.pk, "quantity": units, "unit_price": str(product.price)}
        for product, units in bill.lines
    ]
    return Basket.objects.create(
        reservation_id=held.id,
        customer=customer,
        scope=scope,
        total=bill.total,
        currency=bill.currency,
        lines=lines,
    )


def _shown(held: Held, basket: Basket) -> Reserved:
    prices = {line["sku"]: line["unit_price"] for line in basket.lines}
    return Reserved(
        held.id,
        held.state,
        held.expires_at,
        held.lines,
        prices,
        basket.total,
        basket.currency,
        basket.customer,
        basket.scope,
    )
