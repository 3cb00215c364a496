"""Each invariant is broken by hand and found; a repair fixes what it can; a sound shop is all zeros."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from functools import partial
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from inventory.domain import Line
from inventory.models import Product, StockMovement
from inventory.reservations import reserve
from inventory.stocktake import take_stock
from inventory.strategies import STRATEGIES
from orders.audit import INVARIANTS, REPAIRABLE, audit, counts
from orders.fulfillment import ship, take_back
from orders.lifecycle import cancel, pay
from orders.models import IdempotencyKey, Order
from orders.order_writer import ClientKey
from orders.services import checkout, checkout_reserved
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers

pytestmark = pytest.mark.django_db(transaction=True)

BREAKS = {
    "stock_is_the_sum_of_movements": "UPDATE inventory_product SET on_hand = on_hand + 1 WHERE sku = 'mug'",
    "sold_movements_are_order_items": (
        "INSERT INTO inventory_stockmovement (product_id, kind, quantity, cause, created_at) "
        "SELECT id, 'sold', -1, 'missing', now() FROM inventory_product WHERE sku = 'mug'; "
        "UPDATE inventory_product SET on_hand = on_hand - 1 WHERE sku = 'mug'"
    ),
    "restocked_movements_are_returned_items": (
        "INSERT INTO inventory_stockmovement (product_id, kind, quantity, cause, created_at) "
        "SELECT id, 'restocked', 1, 'restock:' || gen_random_uuid() || ':mug', now() "
        "FROM inventory_product WHERE sku = 'mug'; "
        "UPDATE inventory_product SET on_hand = on_hand + 1 WHERE sku = 'mug'"
    ),
    "shipped_movements_are_shipped_items": (
        "INSERT INTO inventory_stockmovement (product_id, kind, quantity, shipped, cause, created_at) "
        "SELECT id, 'shipped', 0, 1, 'missing', now() FROM inventory_product WHERE sku = 'mug'"
    ),
    "shipments_are_shipped_items": "UPDATE orders_shipment SET quantity = 9",
    "stocktakes_are_in_the_ledger": "UPDATE inventory_stocktake SET counted = 99",
    "states_are_those_of_the_items": (
        "UPDATE orders_order SET state = 'shipped' WHERE state = 'partly_shipped'"
    ),
    "reserved_is_the_sum_of_live_reservations": "UPDATE inventory_product SET reserved = 0 WHERE sku = 'mug'",
    "purchases_are_order_items": "UPDATE inventory_customerpurchase SET units = 9 WHERE customer = 'ann'",
    "customers_reserved_is_the_sum_of_live_reservations": (
        "DELETE FROM inventory_customerpurchase WHERE customer = 'eve'"
    ),
    "totals_are_the_sum_of_items": "UPDATE orders_order SET total = total + 1 WHERE customer = 'ann'",
    "ended_orders_gave_everything_back": (
        "UPDATE orders_order SET state = 'expired' WHERE customer = 'ann'; "
        "INSERT INTO orders_orderevent (order_id, kind, data) "
        "SELECT id, 'expired', '{}' FROM orders_order WHERE customer = 'ann'"
    ),
    "keys_lead_to_their_orders": "UPDATE orders_idempotencykey SET order_id = NULL",
    "changes_of_orders_were_published": "DELETE FROM orders_orderevent WHERE kind = 'shipped'",
}


@pytest.fixture
def shop():
    """A shop in which everything has happened once."""
    ProductFactory.create(sku="mug", on_hand=50)
    ProductFactory.create(sku="pen", on_hand=50)
    checkout([Line("mug", 2), Line("pen", 1)], "row_lock", customer="ann", key=ClientKey("ann", "k", "f"))
    cancel(checkout([Line("mug", 3)], "redis_script", customer="bob").pk)
    paid = pay(checkout([Line("pen", 3)], "conditional_update").pk)
    ship(paid.pk, [Line("pen", 2)], "out")
    take_back(paid.pk, [Line("pen", 1)], "parcel")
    take_stock(Product.objects.get(sku="pen"), 47, reason="yearly", reference="2026")
    reserve([Line("mug", 4)], timedelta(minutes=5), "eve")
    checkout_reserved(reserve([Line("pen", 2)], timedelta(minutes=5), "ann").basket)


def run(*args: str) -> tuple[int, str]:
    """Run the command; return its exit code and what it says."""
    out, code = StringIO(), 0
    try:
        call_command("audit_stock", *args, stdout=out, stderr=StringIO())
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, out.getvalue()


def break_by(sql: str) -> None:
    """Run SQL that no code of the shop would."""
    with connection.cursor() as cursor:
        cursor.execute(sql)


def test_a_sound_shop_is_all_zeros(shop):
    """Exit 0, every invariant 0, and no drift in what is kept outside the database."""
    code, said = run("--json")
    document = json.loads(said)
    assert code == 0
    assert document["broken"] == dict.fromkeys(INVARIANTS, 0)
    assert document["rows"] == []
    assert set(document["drift"].values()) == {0}


@pytest.mark.parametrize("invariant", BREAKS)
def test_a_broken_invariant_is_found_and_named(shop, invariant):
    """Exit 1, with the row; what can be repaired is by --repair, what can't stays broken."""
    break_by(BREAKS[invariant])
    code, said = run("--json")
    document = json.loads(said)
    assert code == 1
    assert [name for name, broken in document["broken"].items() if broken] == [invariant]
    assert {row["invariant"] for row in document["rows"]} == {invariant}
    assert run("--repair", "--yes")[0] == (0 if invariant in REPAIRABLE else 1)


def test_negative_stock_is_found(shop):
    """The CHECK stands before it; the audit would see it all the same."""
    (check,) = (each for each in Product._meta.constraints if each.name == "product_on_hand_not_negative")
    with connection.schema_editor() as editor:
        editor.remove_constraint(Product, check)
    try:
        break_by("UPDATE inventory_product SET on_hand = -1, reserved = 0 WHERE sku = 'pen'")
        assert counts(audit())["stock_is_not_negative"] == 1
    finally:
        break_by("UPDATE inventory_product SET on_hand = 0 WHERE sku = 'pen'")
        with connection.schema_editor() as editor:
            editor.add_constraint(Product, check)


def test_a_repair_that_nobody_can_answer_is_not_done(shop, monkeypatch, capsys):
    """From cron, with no input: nothing is written, and the question doesn't stand in the JSON."""
    break_by(BREAKS["stock_is_the_sum_of_movements"])
    monkeypatch.setattr("sys.stdin", StringIO())
    code, said = run("--repair", "--json")
    assert (code, json.loads(said)["broken"]["stock_is_the_sum_of_movements"]) == (1, 1)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("", 1), ("y", 0)])
def test_a_repair_asks(shop, monkeypatch, answer, code):
    """Only `y` writes; the stock that is there is believed, and the ledger says that it was corrected."""
    break_by(BREAKS["stock_is_the_sum_of_movements"])
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert run("--repair")[0] == code
    corrected = StockMovement.objects.filter(cause__startswith="audit:")
    assert [movement.quantity for movement in corrected] == ([1] if code == 0 else [])
    assert Product.objects.get(sku="mug").on_hand == 49


def test_no_sku_is_left_out():
    """A lab-coat is audited as any product is: the lab has tables of its own."""
    ProductFactory.create(sku="lab-coat", on_hand=3)
    break_by("UPDATE inventory_product SET on_hand = 5 WHERE sku = 'lab-coat'")
    assert {found.what for found in audit()} == {"lab-coat"}


def test_the_audit_may_run_while_the_shop_sells(shop):
    """A sale between two of its statements isn't seen by the second: one snapshot for all invariants."""
    with buyers() as start:
        a = start("A", partial(checkout, [Line("mug", 1)], "row_lock"), "recorded").reaches("recorded")
        assert audit() == []
        a.ends()
    assert audit() == []


@pytest.mark.parametrize(
    "strategy", [name for name, one in STRATEGIES.items() if one.sound and not one.unconfigured()]
)
def test_every_sound_strategy_keeps_the_books(strategy):
    """Two orders, one of them cancelled, through each strategy: all zeros."""
    ProductFactory.create(sku="mug")
    checkout([Line("mug", 2)], strategy, customer="ann")
    cancel(checkout([Line("mug", 3)], strategy, customer="ann", key=ClientKey("", str(uuid.uuid4()), "f")).pk)
    assert audit() == []
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (2, 1)
