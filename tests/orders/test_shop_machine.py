"""The whole shop against a plain model: whatever is done in whatever order, the books agree."""

import secrets
from decimal import Decimal
from itertools import count

import pytest
from django.db import IntegrityError, connection
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from inventory.checkpoints import installed
from inventory.domain import Line, Shortage, SoldOut, merge_lines
from inventory.models import Product, StockMovement
from inventory.services import change_stock, create_product
from inventory.strategies import STRATEGIES
from orders.services import checkout

SOUND = sorted(strategy.name for strategy in STRATEGIES.values() if strategy.sound)
PRICES = (Decimal("1.50"), Decimal("20.00"), Decimal("0.00"))
STEPS = ("read", "written", "recorded")

BOOKS = """
SELECT p.sku, p.on_hand,
       coalesce((SELECT sum(m.quantity) FROM inventory_stockmovement m WHERE m.product_id = p.id), 0),
       coalesce((SELECT sum(i.quantity) FROM orders_orderitem i WHERE i.product_id = p.id), 0)
  FROM inventory_product p WHERE p.sku = ANY(%s)
"""
ORDERS = """
SELECT DISTINCT o.id::text, o.total FROM orders_order o
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

    def __init__(self) -> None:
        super().__init__()
        run = f"{next(self.numbers)}-{secrets.token_hex(4)}"  # each example has products of its own
        self.skus = [f"machine-{run}-{number}" for number in range(len(PRICES))]
        for sku, price in zip(self.skus, PRICES, strict=True):
            create_product(sku, price=price, on_hand=3)
        self.stock = dict.fromkeys(self.skus, 3)
        self.sold = dict.fromkeys(self.skus, 0)
        self.orders: dict[str, Decimal] = {}
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
        """The shelf has more or less than the books; less than nothing is refused."""
        sku = self.skus[product]
        adjust = StockMovement.Kind.ADJUSTED, units, f"count:{sku}:{next(self.causes)}"
        if self.stock[sku] + units < 0:
            with pytest.raises(IntegrityError):
                change_stock(Product.objects.get(sku=sku), *adjust)
        else:
            change_stock(Product.objects.get(sku=sku), *adjust)
            self.stock[sku] += units

    @rule(cart=carts, way=ways)
    def buy(self, cart, way):
        """A cart is sold whole or refused whole, with every short line named."""
        lines = self.lines(cart)
        short = self.shortages(lines)
        if short:
            with pytest.raises(SoldOut) as refused:
                checkout(lines, strategy=way)
            assert set(refused.value.shortages) == short
            return
        self.note(lines, checkout((line for line in lines), strategy=way))

    @rule(cart=carts, way=ways, step=st.sampled_from(STEPS))
    def fail(self, cart, way, step):
        """A sale that fails before its commit sells nothing, whichever way it was."""
        lines = self.lines(cart)

        def crash(name, /, **facts):
            if name == step:
                raise Crash

        with installed(crash):
            try:
                order = checkout(lines, strategy=way)
            except (Crash, SoldOut):
                return
        self.note(lines, order)  # it never came to that step

    def lines(self, cart):
        """Return the cart as the checkout takes it, duplicates and all."""
        return [Line(self.skus[product], units) for product, units in cart]

    def shortages(self, lines):
        """Return what the shopkeeper would say is short."""
        wanted = merge_lines(lines)
        return {
            Shortage(line.sku, line.quantity, self.stock[line.sku])
            for line in wanted
            if self.stock[line.sku] < line.quantity
        }

    def note(self, lines, order):
        """Write a sale down on paper."""
        total = Decimal(0)
        for line in lines:
            self.stock[line.sku] -= line.quantity
            self.sold[line.sku] += line.quantity
            total += PRICES[self.skus.index(line.sku)] * line.quantity
        self.orders[str(order.pk)] = total

    @invariant()
    def the_books_agree(self):
        """Stock, ledger, items and orders are what the paper says."""
        with connection.cursor() as cursor:
            cursor.execute(BOOKS, [self.skus])
            for sku, on_hand, moved, sold in cursor.fetchall():
                assert (sku, on_hand, moved, sold) == (sku, self.stock[sku], on_hand, self.sold[sku])
            cursor.execute(ORDERS, [self.skus])
            assert dict(cursor.fetchall()) == self.orders


@pytest.mark.django_db(transaction=True)
def test_the_shop_keeps_its_books_whatever_is_done():
    """Deliveries, counts, sales and failed sales by every sound strategy, in all sorts of orders."""
    run_state_machine_as_test(Shop, settings=settings(max_examples=20, stateful_step_count=12))


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
