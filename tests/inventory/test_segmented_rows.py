"""Stock in rows of its own: what is spread, gathered, skipped, summed up and folded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.urls import reverse
from django.utils import timezone

from inventory.domain import Line, SoldOut
from inventory.models import Product, StockMovement, StockReservation, StockSegment
from inventory.reservations import reserve
from inventory.segments import levels
from inventory.services import change_stock
from inventory.strategies import get_strategy
from orders.audit import audit
from orders.services import checkout, checkout_reserved
from tests.factories import ProductFactory
from tests.inventory.interleaving import Buyer, buyers, eventually
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = timedelta(minutes=1)
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
    assert totals_of(sku).balanced


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
    assert (totals_of(sku).sold, totals_of(sku).left) == (3, 14)


# Waiting, and never in a circle.


HOLD_UPDATES = """
CREATE FUNCTION hold_the_late_ones() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') = 'late' THEN PERFORM pg_advisory_xact_lock(77); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER hold BEFORE UPDATE ON inventory_stocksegment EXECUTE FUNCTION hold_the_late_ones();
SELECT pg_advisory_lock(77)
"""


@contextmanager
def late_updates_held() -> Iterator[None]:
    """Hold each UPDATE of segments by somebody `late` after it has seen the rows and before it locks one."""
    with connection.cursor() as cursor:
        cursor.execute(HOLD_UPDATES)
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock_all()")
            cursor.execute("DROP FUNCTION hold_the_late_ones CASCADE")


def let_go() -> None:
    """Let those who were held go on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(77)")


def late(work):
    """Return `work`, to be held in its first UPDATE of segments."""

    def doing_so():
        with connection.cursor() as cursor:
            cursor.execute("SET application_name = 'late'")
        return work()

    return doing_so


def waits_for(waiting: Buyer, holder: int | None) -> bool:
    """Return whether a buyer waits for a row of the connection whose server process is `holder`."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s = ANY(pg_blocking_pids(%s))", [holder, waiting.pid])
        return bool(cursor.fetchone()[0])


def test_a_row_that_was_emptied_meanwhile_is_let_go(monkeypatch):
    """N saw a unit in row 2; by the time it locks the row the unit is sold. N mustn't wait with that lock.

    1, 1, 1 are left. G, who wants two, gathers: it has row 0 and waits for X, who has row 1. N finds rows 0
    and 1 locked and row 2 empty, and so gathers too. If it kept row 2 it would wait for G, and G for it.
    """
    sku = ProductFactory.create(on_hand=4).sku
    checkout([Line(sku, 1)], "segmented_rows")
    first = iter([1, 2, 2, 0])
    monkeypatch.setattr("inventory.strategies.segmented_rows.random.randrange", lambda _: next(first))
    buy = partial(checkout, [Line(sku, 1)], "segmented_rows")
    with late_updates_held(), buyers() as start:
        x = start("X", buy, "recorded").reaches("recorded")
        n = start("N", late(buy))
        assert n.ends_or_waits() == "waits"
        buy()
        assert units(sku) == [1, 1, 0, 0, 0, 0, 0, 0]
        g = start("G", partial(checkout, [Line(sku, 2)], "segmented_rows"))
        eventually(lambda: waits_for(g, x.pid), "G waits for X's row")
        let_go()
        eventually(lambda: waits_for(n, g.pid), "N waits for G")
        assert x.ends().error is None
        assert isinstance(g.ends().error, SoldOut)
        assert n.ends().error is None
        assert "deadlocked" not in {event.name for event in n.journal}
    assert (totals_of(sku).sold, totals_of(sku).left) == (4, 0)


@pytest.mark.parametrize("strategy", IN_ROWS)
def test_the_first_buyers_stand_in_line(strategy):
    """No segment is there: A makes them and isn't committed, B, C and a folding wait, and all are served."""
    product = ProductFactory.create(on_hand=3)
    buy = partial(checkout, [Line(product.sku, 1)], strategy)
    with buyers() as start:
        a = start("A", buy, "recorded").reaches("recorded")
        fold = partial(get_strategy(strategy).forget, [product])
        others = [start("B", buy), start("C", buy), start("F", fold)]
        assert [other.ends_or_waits() for other in others] == ["waits"] * 3
        assert [buyer.ends().error for buyer in (a, *others)] == [None] * 4
        assert "deadlocked" not in {event.name for event in a.journal}
    assert (totals_of(product.sku).sold, totals_of(product.sku).left) == (3, 0)


@pytest.mark.parametrize("strategy", IN_ROWS)
def test_all_products_rows_are_locked_before_any_segment(strategy):
    """Kept out of the second product's row, who gathers both has locked no segment of the first."""
    pen, mug = ProductFactory.create(on_hand=2), ProductFactory.create(on_hand=2)
    checkout([Line(pen.sku, 1), Line(mug.sku, 1)], strategy)
    StockSegment.objects.update(units=0)
    Product.objects.update(on_hand=1)
    ours = connection.connection.info.backend_pid
    with buyers() as start, transaction.atomic():
        Product.objects.select_for_update().get(pk=mug.pk)
        b = start("B", partial(checkout, [Line(pen.sku, 1), Line(mug.sku, 1)], strategy))
        eventually(lambda: waits_for(b, ours), "B waits for the mug's row")
        assert StockSegment.objects.filter(product=pen).select_for_update(nowait=True).exists()
        transaction.set_rollback(True)
    assert b.outcome.error is None


@pytest.mark.parametrize("strategy", IN_ROWS)
def test_folding_brings_the_units_back(strategy):
    """After `forget` the product's own row has all of them, and another strategy can sell the last one."""
    product = ProductFactory.create(on_hand=5)
    checkout([Line(product.sku, 1)], strategy)
    get_strategy(strategy).forget([product])
    assert (Product.objects.get().on_hand, units(product.sku)) == (4, [])
    checkout([Line(product.sku, 4)], "row_lock")


def test_units_in_segments_are_shown(client):
    """`levels`, the list of products and the shop page count what isn't in the product's own row."""
    product = ProductFactory.create(sku="mug", on_hand=5)
    reserve([Line("mug", 1)], MINUTE)
    checkout([Line("mug", 2)], "segmented_rows")
    assert levels([product]) == {"mug": 2}
    (listed,) = client.get("/products/").json()["products"]
    assert (Product.objects.get().on_hand, listed["on_hand"], listed["available"]) == (1, 3, 2)
    assert 'data-stock="2"' in client.get("/shop/").content.decode()


def test_units_in_segments_are_shown_in_the_admin(admin_client):
    """In the list with their worth, by the filter, and on the product's page."""
    product = ProductFactory.create(on_hand=5)
    checkout([Line(product.sku, 2)], "segmented_rows")
    changelist = reverse("admin:inventory_product_changelist")
    text = admin_client.get(f"{changelist}?stock=some").content.decode()
    for cell in ('field-stock">3<', "● 3<", 'field-sold">2<', 'field-value">7.50<'):
        assert cell in text
    page = admin_client.get(reverse("admin:inventory_product_change", args=[product.pk])).content.decode()
    assert "● 3<" in page


@pytest.mark.parametrize("address", ["/products/", "/shop/"])
def test_the_lists_ask_once_for_any_number_of_segments(client, address, django_assert_num_queries):
    """Thirty products in segments cost one query, as one does."""
    checkout([Line(ProductFactory.create().sku, 1) for _ in range(30)], "segmented_rows")
    with django_assert_num_queries(1):
        client.get(address)


# Beside who looks at the product's own row.


def test_units_in_segments_can_be_reserved():
    """They are put back into the row where it is short, and sold from segments again after that."""
    product = ProductFactory.create(on_hand=5)
    checkout([Line(product.sku, 2)], "segmented_rows")
    basket = reserve([Line(product.sku, 2)], MINUTE).basket
    assert (Product.objects.get().on_hand, units(product.sku)) == (3, [])
    with pytest.raises(SoldOut) as refused:
        checkout([Line(product.sku, 2)], "segmented_rows")
    assert refused.value.shortages[0].available == 1
    checkout([Line(product.sku, 1)], "segmented_rows")
    checkout_reserved(basket)
    assert totals_of(product.sku).balanced
    assert totals_of(product.sku).left == 0


def test_a_reservation_that_is_refused_leaves_the_segments_alone():
    """It tells what there is in all, and the sellers go on."""
    product = ProductFactory.create(on_hand=5)
    checkout([Line(product.sku, 2)], "segmented_rows")
    with pytest.raises(SoldOut) as refused:
        reserve([Line(product.sku, 4)], MINUTE)
    assert refused.value.shortages[0].available == 3
    assert sum(units(product.sku)) == 3


@pytest.mark.parametrize("strategy", IN_ROWS)
def test_a_reservation_beside_a_sale_from_segments(strategy):
    """B wants what A leaves: it waits for A's row, and gets exactly that."""
    sku = ProductFactory.create(on_hand=17).sku
    checkout([Line(sku, 1)], strategy)
    with buyers() as start:
        a = start("A", partial(checkout, [Line(sku, 2)], strategy), "recorded").reaches("recorded")
        b = start("B", partial(reserve, [Line(sku, 14)], MINUTE))
        assert b.ends_or_waits() == "waits"
        assert a.ends().error is None
        assert b.ends().error is None
        assert isinstance(start("C", partial(checkout, [Line(sku, 1)], strategy)).ends().error, SoldOut)
    assert (totals_of(sku).sold, totals_of(sku).left) == (3, 14)


def test_a_customers_sale_and_an_overdue_reservation_are_no_circle():
    """A sells to ann from a row; B, who wants that row, ends ann's overdue basket only when it has it."""
    product = ProductFactory.create(on_hand=17)
    late = reserve([Line(product.sku, 1)], MINUTE, "ann").basket
    checkout([Line(product.sku, 1)], "segmented_rows")
    StockReservation.objects.filter(basket=late).update(expires_at=timezone.now() - MINUTE)
    with buyers() as start:
        buy = partial(checkout, [Line(product.sku, 1)], "segmented_rows", customer="ann")
        a = start("A", buy, "written").reaches("written")
        b = start("B", partial(reserve, [Line(product.sku, 15)], MINUTE, "bob"))
        assert b.ends_or_waits() == "waits"
        assert a.ends().error is None
        assert b.ends().error is None
    assert "deadlocked" not in {event.name for event in a.journal}


def test_a_stocktaking_finds_units_in_segments():
    """What is missing on the shelf is taken off, wherever the database has it, but no more."""
    product = ProductFactory.create(on_hand=5)
    checkout([Line(product.sku, 2)], "segmented_rows")
    change_stock(product, StockMovement.Kind.ADJUSTED, -2, "count:1")
    with pytest.raises(IntegrityError):
        change_stock(product, StockMovement.Kind.ADJUSTED, -2, "count:2")
    assert totals_of(product.sku).balanced
    assert totals_of(product.sku).left == 1


# Another strategy sells what is spread --------------------------------------------------------------------

SPREADING = [*IN_ROWS, "unit_rows"]
OTHERS = ["row_lock", "combined", "async_reserve", "redis_script", "redis_gate", "segmented_rows"]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("spreading", SPREADING)
def test_products_of_several_strategies_in_one_cart(settings, spreading, other):
    """The mugs' own strategy has spread them; the cart's other product has another: both are sold, twice."""
    settings.PRODUCT_STRATEGIES, settings.CHECKOUT_STRATEGY = True, other
    mug, pen = ProductFactory.create(sku="mug"), ProductFactory.create(sku="pen")
    get_strategy(other).forget([mug, pen])
    Product.objects.filter(sku="mug").update(strategy=spreading)
    for _ in range(2):
        assert checkout([Line("mug", 1)]).strategy == spreading
        assert checkout([Line("mug", 1), Line("pen", 1)]).strategy == other
    with pytest.raises(SoldOut) as refused:
        checkout([Line("mug", 7), Line("pen", 1)])
    assert refused.value.shortages[0].sku == "mug"
    assert audit() == []


def test_units_that_another_buyer_has_put_back_are_found(settings):
    """B has read an empty row; before it can gather, A has, and bought one: B gets another."""
    settings.PRODUCT_STRATEGIES = True
    ProductFactory.create(sku="mug")
    checkout([Line("mug", 1)], "segmented_rows")
    buy = partial(checkout, [Line("mug", 1)], "version_cas")
    with buyers() as start:
        b = start("B", buy, "read").reaches("read")
        assert start("A", buy).ends().error is None
        assert b.ends().error is None
    assert audit() == []


def test_a_refusal_of_units_that_are_not_there_leaves_segments_alone(settings):
    """Eleven of ten: nothing is gathered that would not serve the buyer."""
    settings.PRODUCT_STRATEGIES = True
    mug = ProductFactory.create(sku="mug")
    checkout([Line("mug", 1)], "segmented_rows")
    with pytest.raises(SoldOut):
        checkout([Line("mug", 10)], "row_lock")
    assert sum(units(mug.sku)) == 9


def test_a_shop_of_one_strategy_asks_nothing_more_for_a_refusal(django_assert_num_queries):
    """Units of a product without others lie where its strategy looks."""
    ProductFactory.create(sku="mug", on_hand=0)
    with django_assert_num_queries(1), pytest.raises(SoldOut):
        checkout([Line("mug", 1)], "combined")


@pytest.mark.parametrize("spreading", SPREADING)
def test_after_a_change_of_the_setting_the_units_are_put_back(spreading):
    """`reload_stock` with the strategy of before: then the new one finds them."""
    ProductFactory.create(sku="mug")
    checkout([Line("mug", 1)], spreading)
    with pytest.raises(SoldOut):
        checkout([Line("mug", 1)], "row_lock")
    call_command("reload_stock", spreading, stdout=StringIO())
    checkout([Line("mug", 9)], "row_lock")
    assert audit() == []
