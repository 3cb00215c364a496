"""The whole shop against a plain model: whatever is done in whatever order, the books agree."""

import secrets
import uuid
from datetime import timedelta
from decimal import Decimal
from itertools import count

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from inventory import reservations
from inventory.checkpoints import installed
from inventory.domain import Line, Shortage, SoldOut, merge_lines
from inventory.models import Product, StockMovement, StockReservation
from inventory.services import change_stock, create_product
from inventory.strategies import STRATEGIES
from orders import lifecycle
from orders.models import Order
from orders.order_writer import ClientKey, RepeatedKey
from orders.services import checkout, checkout_reserved

# Those on servers of their own sell as the Redis one does; their tests start those servers.
SOUND = sorted(
    strategy.name for strategy in STRATEGIES.values() if strategy.sound and not strategy.lock_setting
)
PRICES = (Decimal("1.50"), Decimal("20.00"), Decimal("0.00"))
TEN_MINUTES = timedelta(minutes=10)
STEPS = ("read", "written", "recorded")

BOOKS = """
SELECT p.sku, p.on_hand, p.reserved,
       coalesce((SELECT sum(r.quantity) FROM inventory_stockreservation r
                  WHERE r.product_id = p.id AND r.state = 'live'), 0),
       coalesce((SELECT sum(m.quantity) FROM inventory_stockmovement m WHERE m.product_id = p.id), 0),
       coalesce((SELECT sum(i.quantity) FROM orders_orderitem i JOIN orders_order o ON o.id = i.order_id
                  WHERE i.product_id = p.id AND o.state IN ('placed', 'paid')), 0)
  FROM inventory_product p WHERE p.sku = ANY(%s)
"""
ORDERS = """
SELECT DISTINCT o.id, o.total, o.state FROM orders_order o
  JOIN orders_orderitem i ON i.order_id = o.id JOIN inventory_product p ON p.id = i.product_id
 WHERE p.sku = ANY(%s)
"""

products = st.integers(0, len(PRICES) - 1)
carts = st.lists(st.tuples(products, st.integers(1, 4)), min_size=1, max_size=4)
ways = st.sampled_from(SOUND)


class Crash(Exception):
    """A buyer ends in the middle of a sale."""


class Shop(RuleBasedStateMachine):
    """A shop of three products, and next to it what a shopkeeper would note on paper."""

    numbers = count()
    baskets = Bundle("baskets")
    orders = Bundle("orders")

    def __init__(self) -> None:
        super().__init__()
        run = f"{next(self.numbers)}-{secrets.token_hex(4)}"  # each example has products of its own
        self.skus = [f"machine-{run}-{number}" for number in range(len(PRICES))]
        for sku, price in zip(self.skus, PRICES, strict=True):
            create_product(sku, price=price, on_hand=3)
        self.stock = dict.fromkeys(self.skus, 3)
        self.sold = dict.fromkeys(self.skus, 0)
        self.totals: dict[uuid.UUID, Decimal] = {}
        self.states: dict[uuid.UUID, str] = {}
        self.units: dict[uuid.UUID, dict[str, int]] = {}
        self.unpaid: set[uuid.UUID] = set()
        self.promises: dict[uuid.UUID, dict[str, int]] = {}
        self.late: set[uuid.UUID] = set()
        self.keys: set[int] = set()
        self.causes = count()

    @rule(product=products, units=st.integers(1, 5))
    def deliver(self, product, units):
        """More comes in, and the same delivery noted twice counts once."""
        sku = self.skus[product]
        cause = f"delivery:{sku}:{next(self.causes)}"
        row = Product.objects.get(sku=sku)
        change_stock(row, StockMovement.Kind.RECEIVED, units, cause)
        with pytest.raises(IntegrityError):
            change_stock(row, StockMovement.Kind.RECEIVED, units, cause)
        self.stock[sku] += units

    @rule(product=products, units=st.integers(-5, 5).filter(bool))
    def count_shelf(self, product, units):
        """The shelf has more or less than the books; less than what is promised is refused."""
        sku = self.skus[product]
        adjust = StockMovement.Kind.ADJUSTED, units, f"count:{sku}:{next(self.causes)}"
        if self.available(sku) + units < 0:
            with pytest.raises(IntegrityError):
                change_stock(Product.objects.get(sku=sku), *adjust)
        else:
            change_stock(Product.objects.get(sku=sku), *adjust)
            self.stock[sku] += units

    @rule(target=orders, cart=carts, way=ways)
    def buy(self, cart, way):
        """A cart is sold whole or refused whole, with every short line named."""
        lines = self.lines(cart)
        if self.is_refused(lines, way):
            self.refused(lines, lambda: checkout(lines, strategy=way))
            return multiple()
        order = self.note(lines, checkout((line for line in lines), strategy=way))
        self.fold(way)
        return order

    @rule(cart=carts, way=ways, key=st.integers(0, 1))
    def buy_with_key(self, cart, way, key):
        """One key is one order, whatever is bought and whichever way, however often it comes."""
        lines = self.lines(cart)
        named = ClientKey(self.skus[0], str(key), "fingerprint")
        if self.is_refused(lines, way):
            self.refused(lines, lambda: checkout(lines, strategy=way, key=named))
        elif key in self.keys:
            with pytest.raises(RepeatedKey):
                checkout(lines, strategy=way, key=named)
        else:
            self.keys.add(key)
            self.note(lines, checkout(lines, strategy=way, key=named))
            self.fold(way)

    @rule(cart=carts, way=ways, step=st.sampled_from(STEPS))
    def fail(self, cart, way, step):
        """A sale that fails before its commit sells nothing, whichever way it was."""
        lines = self.lines(cart)
        self.sweep()

        def crash(name, /, **facts):
            if name == step:
                raise Crash

        with installed(crash):
            try:
                order = checkout(lines, strategy=way)
            except (Crash, SoldOut):
                return
        self.note(lines, order)  # it never came to that step
        self.fold(way)

    @rule(target=baskets, cart=carts)
    def reserve(self, cart):
        """Units are promised, all or none; what has run out may be promised anew."""
        lines = self.lines(cart)
        short = {line.sku for line in merge_lines(lines) if self.available(line.sku) < line.quantity}
        if self.shortages(lines, late_ones_count=False):
            self.refused(lines, lambda: reservations.reserve(lines, TEN_MINUTES))
            return multiple()
        self.free_late(short)
        basket = reservations.reserve(lines, TEN_MINUTES).basket
        self.promises[basket] = {line.sku: line.quantity for line in merge_lines(lines)}
        return basket

    @rule(basket=baskets)
    def run_out(self, basket):
        """Time passes; nobody sweeps."""
        StockReservation.objects.filter(basket=basket).update(expires_at=timezone.now() - TEN_MINUTES)
        self.late.add(basket)

    @rule()
    def sweep(self):
        """The task frees what has run out."""
        reservations.expire_overdue(self.skus)
        self.free_late(self.skus)

    @rule(basket=baskets)
    def release(self, basket):
        """A customer gives back what is still promised, once."""
        if self.promises[basket]:
            reservations.release(basket)
            self.promises[basket] = {}
        else:
            with pytest.raises(reservations.ReservationGone):
                reservations.release(basket)

    @rule(target=orders, basket=baskets)
    def buy_reserved(self, basket):
        """A promise is kept, once, and not after its end."""
        if not self.promises[basket] or basket in self.late:
            with pytest.raises(reservations.ReservationGone):
                checkout_reserved(basket)
            return multiple()
        lines = [Line(sku, units) for sku, units in self.promises[basket].items()]
        self.promises[basket] = {}
        return self.note(lines, checkout_reserved(basket).order)

    @rule(order=orders)
    def pay(self, order):
        """A placed order is paid once, in time; too late, it has ended, and its units are for sale again."""
        if self.states[order] == "placed" and order in self.unpaid:
            self.end(order, "expired")
        if self.states[order] in ("cancelled", "expired"):
            with pytest.raises(lifecycle.PaymentTooLate):
                lifecycle.pay(order)
        else:
            lifecycle.pay(order)
            self.states[order] = "paid"

    @rule(order=orders)
    def cancel(self, order):
        """Units come back once, however often it is cancelled; what has expired stays so."""
        if self.states[order] == "expired":
            with pytest.raises(lifecycle.TransitionRefused):
                lifecycle.cancel(order)
            return
        lifecycle.cancel(order)
        if self.states[order] != "cancelled":
            self.end(order, "cancelled")

    @rule(order=orders)
    def do_not_pay(self, order):
        """The payment window ends; nobody sweeps."""
        Order.objects.filter(pk=order).update(pay_by=timezone.now() - TEN_MINUTES)
        self.unpaid.add(order)

    @rule()
    def expire_orders(self):
        """The task ends each order that was not paid in time, once."""
        overdue = [order for order in self.unpaid if self.states[order] == "placed"]
        assert [lifecycle.expire(order) for order in self.unpaid].count(True) == len(overdue)
        for order in overdue:
            self.end(order, "expired")

    def end(self, order, state):
        """Write down that an order ended and its units are back."""
        self.states[order] = state
        for sku, units in self.units[order].items():
            self.stock[sku] += units
            self.sold[sku] -= units

    def fold(self, way):
        """Put units that lie in segments back, as a shop does before it sells in another way."""
        STRATEGIES[way]().forget(Product.objects.filter(sku__in=self.skus))

    def lines(self, cart):
        """Return the cart as the checkout takes it, duplicates and all."""
        return [Line(self.skus[product], units) for product, units in cart]

    def available(self, sku, *, late_ones_count=True):
        """Return the units that aren't promised; of late promises only if they still count."""
        gone = set() if late_ones_count else self.late
        live = [units for basket, units in self.promises.items() if basket not in gone]
        return self.stock[sku] - sum(units.get(sku, 0) for units in live)

    def shortages(self, lines, **options):
        """Return what the shopkeeper would say is short."""
        return {
            Shortage(line.sku, line.quantity, self.available(line.sku, **options))
            for line in merge_lines(lines)
            if self.available(line.sku, **options) < line.quantity
        }

    def is_refused(self, lines, way):
        """Return whether a sale is refused; before it is, what has run out is freed."""
        if STRATEGIES[way].keeps_stock:
            self.sweep()  # it refuses by a copy that only the sweep brings up to date
        if self.shortages(lines):
            self.free_late({line.sku for line in lines})
        return bool(self.shortages(lines))

    def refused(self, lines, act):
        """Do what must be refused with the shortages that the shopkeeper sees."""
        with pytest.raises(SoldOut) as refused:
            act()
        assert set(refused.value.shortages) == self.shortages(lines, late_ones_count=False)

    def free_late(self, skus):
        """Cross out late promises of these products."""
        for basket in self.late:
            for sku in skus:
                self.promises[basket].pop(sku, None)

    def note(self, lines, order):
        """Write a sale down on paper."""
        total = Decimal(0)
        for line in lines:
            self.stock[line.sku] -= line.quantity
            self.sold[line.sku] += line.quantity
            total += PRICES[self.skus.index(line.sku)] * line.quantity
        self.totals[order.pk], self.states[order.pk] = total, "placed"
        self.units[order.pk] = {line.sku: line.quantity for line in merge_lines(lines)}
        return order.pk

    @invariant()
    def the_books_agree(self):
        """Stock, ledger, items and orders are what the paper says."""
        with connection.cursor() as cursor:
            cursor.execute(BOOKS, [self.skus])
            for sku, on_hand, reserved, promised, moved, sold in cursor.fetchall():
                assert (sku, on_hand, sold) == (sku, self.stock[sku], self.sold[sku])
                assert (sku, reserved, moved) == (sku, promised, on_hand)
                assert (sku, on_hand - reserved) == (sku, self.available(sku))
            cursor.execute(ORDERS, [self.skus])
            told = {order: (total, state) for order, total, state in cursor.fetchall()}
            assert told == {order: (self.totals[order], self.states[order]) for order in self.totals}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_shop_keeps_its_books_whatever_is_done():
    """Deliveries, counts, sales and failed sales by every sound strategy, in all sorts of orders."""
    run_state_machine_as_test(
        Shop,
        settings=settings(
            max_examples=12, stateful_step_count=15, phases=[Phase.generate], report_multiple_bugs=False
        ),
    )


@pytest.mark.django_db(transaction=True)
def test_the_machine_catches_a_shop_that_forgets(monkeypatch):
    """Strategies that record the sale and leave the stock alone are found out."""

    def sell(strategy, sale):
        skus = [line.sku for line in sale.lines]
        sale.record({product.sku: product for product in Product.objects.filter(sku__in=skus)})

    for name in SOUND:
        monkeypatch.setattr(STRATEGIES[name], "sell", sell)
    hurried = settings(max_examples=5, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_state_machine_as_test(Shop, settings=hurried)
