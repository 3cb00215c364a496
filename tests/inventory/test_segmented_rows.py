"""Stock in rows of its own: what is spread, gathered, skipped, summed up and folded."""

from __future__ import annotations

from functools import partial

import pytest

from inventory.domain import Line, SoldOut
from inventory.models import Product, StockSegment
from inventory.segments import levels
from inventory.strategies import get_strategy
from orders.selectors import product_data, products_for_sale
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.books import books
from tests.inventory.interleaving import buyers

pytestmark = pytest.mark.django_db(transaction=True)

IN_ROWS = ["segmented_rows", "segmented_locks"]


def units(sku: str) -> list[int]:
    """Return what the segments hold, by number."""
    return list(
        StockSegment.objects.filter(product__sku=sku).order_by("number").values_list("units", flat=True)
    )


@pytest.mark.parametrize("strategy", IN_ROWS)
def test_a_line_of_three_over_single_units_is_served(strategy):
    """1, 1, 1 are left: a line of 3 gathers them, and then it is sold out."""
    sku = ProductFactory.create(on_hand=4).sku
    checkout([Line(sku, 1)], strategy)
    assert units(sku) == [1, 1, 1, 0, 0, 0, 0, 0]
    checkout([Line(sku, 3)], strategy)
    with pytest.raises(SoldOut) as refused:
        checkout([Line(sku, 1)], strategy)
    assert refused.value.shortages[0].available == 0
    assert books(sku).balanced


def test_a_locked_row_is_skipped():
    """While A holds a row until its commit, B sells from another and doesn't wait."""
    sku = ProductFactory.create(on_hand=17).sku
    checkout([Line(sku, 1)], "segmented_rows")
    work = partial(checkout, [Line(sku, 1)], "segmented_rows")
    with buyers() as start:
        a = start("A", work, "recorded").reaches("recorded")
        b = start("B", work)
        assert b.ends_or_waits() == "ended"
        assert b.outcome.error is None
        a.ends()
    assert (books(sku).sold, books(sku).left) == (3, 14)


@pytest.mark.parametrize("strategy", IN_ROWS)
def test_folding_brings_the_units_back(strategy):
    """After `forget` the product's own row has all of them, and another strategy can sell the last one."""
    product = ProductFactory.create(on_hand=5)
    checkout([Line(product.sku, 1)], strategy)
    get_strategy(strategy).forget([product])
    assert (Product.objects.get().on_hand, units(product.sku)) == (4, [])
    checkout([Line(product.sku, 4)], "row_lock")


def test_units_in_segments_are_shown():
    """The list of products and `levels` count what isn't in the product's own row."""
    product = ProductFactory.create(on_hand=5)
    checkout([Line(product.sku, 2)], "segmented_rows")
    assert levels([product]) == {product.sku: 3}
    (listed,) = products_for_sale()
    assert (listed.on_hand, product_data(listed)["on_hand"], product_data(listed)["available"]) == (0, 3, 3)
