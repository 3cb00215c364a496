"""The one way to place an order."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal

from django.conf import settings
from django.db import IntegrityError

from inventory.checkpoints import checkpoint
from inventory.domain import Line, merge_in_order
from inventory.models import Product, StockMovement
from inventory.rows import refuse
from inventory.strategies import Sale, get_strategy
from orders.models import Order, OrderItem


def checkout(lines: Iterable[Line], strategy: str | None = None) -> Order:
    """Sell `lines` and return the order, committed.

    Args:
        lines: the cart; duplicates are merged, a generator is consumed once.
        strategy: the name of a strategy; None for `settings.CHECKOUT_STRATEGY`.

    Raises:
        InvalidCart: the cart can't be an order; nothing was asked of any server.
        UnknownStrategy: no strategy has that name.
        UnknownProduct: a line names a product that there isn't.
        SoldOut: not enough stock; every short line is named.
        Busy: the stock was busy for too long; try again.
        BackendUnavailable: the strategy's lock server or stock server doesn't answer.

    Example:
        >>> checkout([Line("mug", 2), Line("pen", 1)], strategy="row_lock")  # doctest: +SKIP
        <Order: 0b6f…>
    """
    basket = merge_in_order(lines)
    cart = tuple(sorted(basket))
    seller = get_strategy(settings.CHECKOUT_STRATEGY if strategy is None else strategy)
    receipt = _Receipt(cart, seller.name)
    try:
        seller.sell(Sale(lines=cart, record=receipt.write, id=receipt.id, basket=basket))
    except IntegrityError as error:
        if _constraint(error) != "product_on_hand_not_negative":
            raise
        # A broken strategy on guarded stock: the last line of defence is the database's own CHECK.
        checkpoint("second_line")
        refuse(cart)
    return receipt.order


def _constraint(error: IntegrityError) -> str | None:
    diagnostics = getattr(error.__cause__, "diag", None)
    return getattr(diagnostics, "constraint_name", None)


class _Receipt:
    """The rows of one order. Its id comes first: however often a strategy tries, one order comes of it."""

    def __init__(self, cart: tuple[Line, ...], strategy: str) -> None:
        self.id = uuid.uuid4()
        self._cart = cart
        self._strategy = strategy
        self._order: Order | None = None

    @property
    def order(self) -> Order:
        if self._order is None:
            raise RuntimeError(f"the strategy {self._strategy!r} returned without recording the sale")
        return self._order

    def write(self, products: Mapping[str, Product]) -> None:
        """Insert order, items and movements in the current transaction."""
        total = sum((products[line.sku].price * line.quantity for line in self._cart), Decimal(0))
        order = Order.objects.create(id=self.id, total=total, strategy=self._strategy)
        items = [self._item(order, line, products[line.sku]) for line in self._cart]
        order.known_items = OrderItem.objects.bulk_create(items)
        StockMovement.objects.bulk_create(self._movement(line, products[line.sku]) for line in self._cart)
        self._order = order
        checkpoint("recorded", order=self.id)

    def _item(self, order: Order, line: Line, product: Product) -> OrderItem:
        return OrderItem(order=order, product=product, quantity=line.quantity, unit_price=product.price)

    def _movement(self, line: Line, product: Product) -> StockMovement:
        return StockMovement(
            product=product,
            kind=StockMovement.Kind.SOLD,
            quantity=-line.quantity,
            cause=f"order:{self.id}:{line.sku}",
        )
