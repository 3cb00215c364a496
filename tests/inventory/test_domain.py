"""Lines, carts and the ways in which a sale can end."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.domain import (
    MAX_LINES,
    MAX_QUANTITY,
    Busy,
    InvalidCart,
    LimitReached,
    Line,
    MixedCurrencies,
    NotForSale,
    ReferenceUsed,
    Shortage,
    SoldOut,
    UnknownProduct,
    merge_lines,
)

SKUS = st.sampled_from(["ant", "bee", "cat", "dog"])
LINES = st.lists(st.builds(Line, SKUS, st.integers(1, 50)), min_size=1, max_size=MAX_LINES)


@pytest.mark.parametrize(
    "quantity", [0, -1, -(10**9), MAX_QUANTITY + 1, 10**30, pytest.param(10**5000, id="5001 digits")]
)
def test_a_quantity_out_of_range_is_refused(quantity):
    """Zero, negative and huge quantities are refused with the range that is allowed."""
    with pytest.raises(InvalidCart, match=f"between 1 and {MAX_QUANTITY}") as refused:
        Line("mug", quantity)
    assert refused.value.field == "quantity"


@pytest.mark.parametrize("quantity", [True, False, 1.0, 1.5, "1", None, [1], float("nan")])
def test_a_quantity_that_is_no_whole_number_is_refused(quantity):
    """A bool is no quantity either, though Python takes it for an int."""
    with pytest.raises(InvalidCart, match="whole number") as refused:
        Line("mug", quantity)
    assert refused.value.value is quantity


@pytest.mark.parametrize(
    "sku", ["", " ", "a b", "-a", ".a", "a:b", "{a}", "a\n", "a" * 65, "é", None, 7, b"mug"]
)
def test_a_sku_that_would_need_quoting_is_refused(sku):
    """Nothing that can't stand in the name of a lock, a key or an address is a SKU."""
    with pytest.raises(InvalidCart) as refused:
        Line(sku, 1)
    assert refused.value.field == "sku"


@pytest.mark.parametrize("sku", ["a", "A-1", "mug_blue.2", "0", "a" * 64])
def test_plain_skus_are_accepted(sku):
    """Letters, digits, dots, hyphens and underscores make a SKU."""
    assert Line(sku, MAX_QUANTITY).sku == sku


def test_duplicates_are_added_up():
    """Two lines of one SKU become one, so that they aren't checked apart."""
    assert merge_lines([Line("b", 1), Line("a", 2), Line("b", 3)]) == (Line("a", 2), Line("b", 4))


def test_duplicates_may_not_add_up_to_too_many():
    """Splitting a quantity over lines doesn't get around its limit."""
    with pytest.raises(InvalidCart) as refused:
        merge_lines([Line("a", MAX_QUANTITY), Line("a", 1)])
    assert refused.value.value == MAX_QUANTITY + 1


def test_a_generator_is_consumed_once():
    """A cart may be a generator: everything that is in it is seen."""
    assert merge_lines(Line("a", n) for n in (1, 2, 3)) == (Line("a", 6),)


@pytest.mark.parametrize("lines", [[], (), iter(())])
def test_an_empty_cart_is_refused(lines):
    """No lines, no order."""
    with pytest.raises(InvalidCart, match="at least one"):
        merge_lines(lines)


@pytest.mark.parametrize("lines", [itertools.repeat(Line("a", 1)), [Line("a", 1)] * (MAX_LINES + 1)])
def test_too_many_lines_are_refused(lines):
    """Even an endless cart is refused, and in finite time."""
    with pytest.raises(InvalidCart, match=f"at most {MAX_LINES}"):
        merge_lines(lines)


@pytest.mark.parametrize("lines", [None, 7])
def test_a_cart_that_is_no_collection_is_refused(lines):
    """What can't be gone through has no lines."""
    with pytest.raises(InvalidCart) as refused:
        merge_lines(lines)
    assert refused.value.field == "lines"


@pytest.mark.parametrize("line", ["mug", ("mug", 1), {"sku": "mug", "quantity": 1}, None])
def test_a_line_that_is_no_line_is_refused(line):
    """A tuple or a dict wasn't checked, so it isn't taken for a line."""
    with pytest.raises(InvalidCart, match="must be a Line"):
        merge_lines([line])


@given(LINES)
def test_merging_keeps_every_unit(lines):
    """Whatever the cart: the units of each SKU are kept, each SKU is there once, and they are sorted."""
    merged = merge_lines(lines)
    skus = [line.sku for line in merged]
    assert skus == sorted({line.sku for line in lines})
    for line in merged:
        assert line.quantity == sum(one.quantity for one in lines if one.sku == line.sku)


@given(LINES, st.randoms())
def test_the_order_of_the_basket_does_not_matter(lines, random):
    """Two baskets with the same lines lock in the same order."""
    shuffled = list(lines)
    random.shuffle(shuffled)
    assert merge_lines(shuffled) == merge_lines(lines)


@pytest.mark.parametrize(
    "error",
    [
        SoldOut([Shortage("mug", 2, 1), Shortage("pen", 5, 0)]),
        Busy("locked", retry_after=2.5),
        UnknownProduct(["missing"]),
        InvalidCart("quantity", 0, "must be more"),
        ReferenceUsed("parcel-1", "2 × mug"),
        LimitReached("mug", 2, 1, 2),
        NotForSale(["lamp"]),
        MixedCurrencies({"mug": "EUR", "poster": "USD"}),
    ],
)
def test_errors_travel_between_processes(error):
    """Every outcome survives pickling with all that it knows."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own dump
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_sold_out_says_how_much_there_is():
    """The message names each short line, what was asked for and what is there."""
    assert str(SoldOut([Shortage("mug", 2, 1), Shortage("pen", 5, 0)])) == (
        "not enough stock: mug (1 of 2), pen (0 of 5)"
    )
