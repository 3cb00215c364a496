"""Many orders in one statement, each with its own verdict; limits a customer; repeated keys."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import pytest
from django.db import IntegrityError, transaction
from inventory.rows import find_products

from inventory import Line, SoldOut
from inventory.models import StockMovement
from inventory.strategies import STRATEGIES
from orders import order_writer
from orders.after_sale.lifecycle import cancel
from orders.models import CustomerPurchase, IdempotencyKey, Order, OrderItem, Product
from orders.selling.checkout import checkout
from orders.selling.refusals import LimitReached, RepeatedKey
from orders.selling.writing import ClientKey, Receipt, take_and_write, write_many
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)
SOUND = [name for name, one in STRATEGIES.items() if one.sound and not one.unconfigured()]


@pytest.fixture
def mug():
    """A product of which one customer may have two."""
    product = ProductFactory.create(sku="mug")
    Product.objects.filter(pk=product.pk).update(customer_limit=2)
    return Product.objects.get(pk=product.pk)


def units(customer: str) -> int:
    """Return what the counter of a customer says."""
    return sum(CustomerPurchase.objects.filter(customer=customer).values_list("units", flat=True))


@pytest.mark.parametrize("strategy", SOUND)
def test_a_customer_has_at_most_the_limit(mug, strategy):
    """The third mug is refused, whatever the strategy; stock and counter stay; another customer is served."""
    checkout([Line("mug", 2)], strategy, customer="ann")
    with pytest.raises(LimitReached) as refused:
        checkout([Line("mug", 1)], strategy, customer="ann")
    assert (refused.value.bought, refused.value.limit, refused.value.requested) == (2, 2, 1)
    checkout([Line("mug", 1)], strategy, customer="bob")
    assert (units("ann"), units("bob")) == (2, 1)
    assert totals_of("mug").balanced
    assert totals_of("mug").left == 7


def test_who_does_not_say_who_it_is_gets_nothing_limited(mug):
    """Nobody in particular can't be told from anybody else."""
    with pytest.raises(LimitReached):
        checkout([Line("mug", 1)], "conditional_update")


def test_what_was_bought_before_there_was_a_limit_counts(mug):
    """Units are counted for every customer, so a limit that comes later finds them."""
    Product.objects.update(customer_limit=None)
    order = checkout([Line("mug", 3)], "conditional_update", customer="ann")
    Product.objects.update(customer_limit=4)
    with pytest.raises(LimitReached):
        checkout([Line("mug", 2)], "conditional_update", customer="ann")
    cancel(order.pk)
    assert units("ann") == 0


def test_two_first_purchases_at_once(mug):
    """Neither finds a counter; the second waits for the first, and is refused."""
    ways = STRATEGIES["conditional_update"], "recorded"
    with buyers() as start:
        buy = partial(checkout, [Line("mug", 2)], ways[0].name, customer="ann")
        a = start("A", buy, "recorded").reaches("recorded")
        b = start("B", buy)
        assert b.ends_or_waits() == "waits"
        assert a.ends().error is None
        assert isinstance(b.ends().error, LimitReached)
    assert units("ann") == 2


def batch(*receipts: Receipt) -> dict:
    """Write receipts in a transaction of their own; returns the refusals by customer."""
    with transaction.atomic():
        refused = write_many(receipts, find_products([Line("mug", 1), Line("pen", 1)]))
    return {receipt.customer: refused[receipt.id] for receipt in receipts if receipt.id in refused}


def test_a_batch_is_one_statement(mug, django_assert_num_queries):
    """Three orders of nobody in particular: BEGIN, the products, one INSERT for all, COMMIT."""
    ProductFactory.create(sku="pen")
    with django_assert_num_queries(4):
        assert batch(*(Receipt((Line("pen", 1),), "batch") for _ in range(3))) == {}
    assert (Order.objects.count(), OrderItem.objects.count()) == (3, 3)
    assert StockMovement.objects.filter(kind="sold").count() == 3


def test_a_member_that_cannot_be_does_not_fail_its_neighbours(mug):
    """One over the limit in both its lines, one with a used key: the third is written, whole."""
    ProductFactory.create(sku="pen")
    key = ClientKey("", "k", "print")
    batch(Receipt((Line("pen", 1),), "batch", key=key))
    greedy = Receipt((Line("mug", 3), Line("pen", 1)), "batch", "greedy")
    again = Receipt((Line("pen", 2),), "batch", "again", key=key)
    fine = Receipt((Line("mug", 2), Line("pen", 1)), "batch", "fine", key=ClientKey("", "k2", "print"))
    refused = batch(greedy, again, fine)
    assert isinstance(refused.pop("greedy"), LimitReached)
    assert isinstance(refused.pop("again"), RepeatedKey)
    assert refused == {}
    assert set(Order.objects.values_list("customer", flat=True)) == {"", "fine"}
    assert (units("greedy"), units("again"), units("fine")) == (0, 0, 3)


def test_one_key_twice_in_a_batch_is_one_order(mug):
    """Two requests with one key meet in a batch: one is written, the other told that it is a repetition."""
    ProductFactory.create(sku="pen")
    key = ClientKey("", "k", "print")
    first, second = (Receipt((Line("pen", 1),), "batch", name, key=key) for name in ("a", "b"))
    refused = batch(first, second)
    assert [type(error) for error in refused.values()] == [RepeatedKey]
    assert Order.objects.count() == IdempotencyKey.objects.count() == 1
    assert units("a") + units("b") == 1


@pytest.mark.parametrize("strategy", SOUND)
def test_a_repeated_key_sells_nothing(mug, strategy):
    """The second checkout is refused, and stock, order and copies outside the database stay as they were."""
    ProductFactory.create(sku="pen")
    key = ClientKey("ann", "k", "print")
    checkout([Line("pen", 1)], strategy, key=key)
    with pytest.raises(RepeatedKey):
        checkout([Line("pen", 1)], strategy, key=key)
    checkout([Line("pen", 9)], strategy)
    assert totals_of("pen").left == 0
    assert Order.objects.count() == 2


def test_two_requests_with_one_key(mug):
    """B waits until A's key is committed, and is then a repetition; if A dies, B is the first."""
    ProductFactory.create(sku="pen")
    buy = partial(checkout, [Line("pen", 1)], "conditional_update")
    with buyers() as start:
        for end, expected in (("ends", RepeatedKey), ("dies", type(None))):
            key = ClientKey("", end, "print")
            a = start("A" + end, partial(buy, key=key), "recorded").reaches("recorded")
            b = start("B" + end, partial(buy, key=key))
            assert b.ends_or_waits() == "waits"
            getattr(a, end)()
            assert type(b.ends().error) is expected
    assert Order.objects.count() == 2


@pytest.fixture
def overtaken():
    """Products as a buyer has read them whose lock did not hold: another has bought since."""
    ProductFactory.create(sku="mug", on_hand=2), ProductFactory.create(sku="pen", on_hand=9)
    read = find_products([Line("mug", 2), Line("pen", 1)])
    checkout([Line("mug", 1)], "conditional_update")
    return read


def take(read: Mapping[str, Product], key: ClientKey | None = None) -> Receipt:
    """Buy two mugs and a pen on the strength of what was read."""
    receipt = Receipt((Line("mug", 2), Line("pen", 1)), "test", key=key)
    with transaction.atomic():
        take_and_write(receipt, read)
    return receipt


def test_the_statement_that_writes_takes_no_units_that_are_not_there(overtaken):
    """The second line refuses the whole cart, names the short line alone, and nothing is taken or kept."""
    with pytest.raises(SoldOut) as refused:
        take(overtaken, ClientKey("", "k", "print"))
    assert [(short.sku, short.available) for short in refused.value.shortages] == [("mug", 1)]
    assert (totals_of("mug").left, totals_of("pen").left) == (1, 9)
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (1, 0)


def test_without_the_second_line_the_same_sale_is_oversold(overtaken, monkeypatch):
    """The condition in the statement is what refused; the table's own CHECK stands behind it."""
    mutant = order_writer._TAKE_AND_WRITE.replace(order_writer._ENOUGH, "true")
    monkeypatch.setattr(order_writer, "_TAKE_AND_WRITE", mutant)
    with pytest.raises(IntegrityError, match="product_on_hand_not_negative"):
        take(overtaken)


def test_reservations_count_in_the_statement_that_writes(overtaken):
    """Units that are promised to another basket are not there, and a pen sold beyond the stock is."""
    Product.objects.filter(sku="mug").update(on_hand=3, reserved=2)
    with pytest.raises(SoldOut):
        take(overtaken)
    Product.objects.filter(sku="mug").update(backorder_limit=1)
    assert take(overtaken).created_at is not None
    assert Product.objects.get(sku="mug").available == 0


def test_units_of_a_limited_product_are_counted_by_the_statement_that_writes(mug):
    """Beyond the limit, alone or with what is reserved, nothing is counted; up to it everything is."""
    mugs = find_products([Line("mug", 3)])
    CustomerPurchase.objects.create(customer="ann", product=mugs["mug"], units=0, reserved=1)
    for customer, units_wanted, left in (("ann", 2, 10), ("bob", 3, 10), ("", 1, 10), ("ann", 1, 9)):
        with suppress(LimitReached), transaction.atomic():
            take_and_write(Receipt((Line("mug", units_wanted),), "test", customer), mugs)
        assert totals_of("mug").left == left, customer
    assert (units("ann"), units("bob")) == (1, 0)
