"""The one way to place an order.

    place            sold_out_memory refuses, or
      stock.sell       the strategy: what it locks, BEGIN, take the units,
        write            write the orders of the batch,
                       COMMIT, and what it unlocks.

Nothing else here opens a transaction, and nothing is tried twice: `inventory` decides again where overdue
reservations stood in the way, and says Busy where rows stayed locked.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from decimal import Decimal
from time import monotonic

from django.conf import settings

from inventory import SoldOut, stock
from inventory.strategies.base import SoldLines
from orders.models import Order
from orders.selling import reservations, sold_out_memory
from orders.selling.cart import merge_lines
from orders.selling.strategies import seller
from orders.selling.writing import ClientKey, Receipt, write_orders


def checkout(
    lines: Iterable[tuple[str, int]],
    strategy: str | None = None,
    *,
    customer: str = "",
    key: ClientKey | None = None,
) -> Order:
    """Sell `lines` and return the order, committed.

    Args:
        lines: the cart, pairs of SKU and quantity; duplicates are merged, a generator is consumed once.
        strategy: an alias of INVENTORY; None for `settings.CHECKOUT_STRATEGY`.
        customer: who buys; needed for products with a limit a customer.
        key: under which the client may repeat the request; written with the order.

    Raises:
        InvalidLines, UnknownStrategy: nothing was asked of any server.
        UnknownSku, SoldOut, NotForSale, MixedCurrencies, LimitReached: a final answer; nothing was ordered.
        RepeatedKey: the key has its answer already, and nothing was written.
        Busy, DatabaseUnavailable, BackendUnavailable: nothing was ordered; try again.
        OutcomeUnknown: the database failed in COMMIT; repeat with the same key.

    Example:
        >>> checkout([("mug", 2), ("pen", 1)], strategy="combined")  # doctest: +SKIP
        <Order: 0b6f…>
    """
    return place(lines, strategy, customer=customer, key=key).order


def place(
    lines: Iterable[tuple[str, int]],
    strategy: str | None = None,
    *,
    customer: str = "",
    key: ClientKey | None = None,
    scope: str = "",
    expected_total: Decimal | None = None,
) -> Receipt:
    """`checkout` that returns the order's receipt, which has the answer to the client as well.

    Args:
        scope: the authenticated caller whose order it is; empty: any caller that knows its id.
        expected_total: what the order must cost; None: what it costs now.

    Raises:
        PriceChanged: it costs something else. And whatever `checkout` raises.
    """
    name, stock_of_strategy = seller(strategy)
    cart = merge_lines(lines)
    sold_out_memory.refuse(cart)
    agreed = None if expected_total is None else (expected_total, "")
    receipt = Receipt(cart, name, customer, settings.PAYMENT_WINDOW or None, key, scope, agreed)
    asked = monotonic()
    try:
        stock_of_strategy.sell(cart, cause=receipt.cause, write_many=_write, data=receipt)
    except SoldOut as refused:
        sold_out_memory.remember(refused.shortages, asked)
        raise
    return receipt


def checkout_reserved(
    reservation: uuid.UUID,
    *,
    customer: str = "",
    key: ClientKey | None = None,
    scope: str = "",
    expected_total: Decimal | None = None,
) -> Receipt:
    """Sell what `reservations.reserve` promised, and return the receipt.

    Args:
        customer: who buys; empty: who reserved. key, scope: as for `place`.
        expected_total: what the order must cost; None: what was agreed when it was reserved.

    Raises:
        ReservationGone: it expired, was released or sold. PriceChanged: it stays reserved. And as `place`.
    """
    made = reservations.find(reservation)
    buyer, window = customer or made.customer, settings.PAYMENT_WINDOW or None
    agreed = (made.total, made.currency) if expected_total is None else (expected_total, "")
    receipt = Receipt(made.lines, "reservation", buyer, window, key, scope, agreed, promised=True)
    stock.held(reservation).sell(cause=receipt.cause, write=lambda lines: write_orders([receipt]))
    return receipt


def _write(sold: Sequence[SoldLines]) -> list[None]:
    """Write the orders of a batch; each receipt learns its answer."""
    write_orders([lines.data for lines in sold])
    return [None] * len(sold)
