"""Each invariant is broken by hand and found; a sound shop is clean, also while it sells."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from functools import partial
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from orders import audit as module
from orders.after_sale.fulfillment import cancel_units, ship, take_back
from orders.after_sale.lifecycle import cancel, pay
from orders.after_sale.refunds import refund
from orders.audit import INVARIANTS, audit
from orders.models import Order
from orders.selling.checkout import checkout, checkout_reserved
from orders.selling.reservations import reserve
from orders.selling.writing import ClientKey
from tests.factories import ProductFactory
from tests.lab.interleaving import buyers
from tests.support.databases import default_leads_to

pytestmark = pytest.mark.django_db(transaction=True)

MOVED = """
WITH entry AS (
    INSERT INTO inventory_entry (cause, kind, fingerprint, actor, of_id)
    SELECT 'missing', {kind}, 0, '', id FROM inventory_entry WHERE kind = 2 ORDER BY id LIMIT 1
    RETURNING id, of_id)
INSERT INTO inventory_movement (entry_id, level_id, source, target, quantity)
SELECT entry.id, level_id, {states}, 1
  FROM entry JOIN inventory_movement m ON m.entry_id = entry.of_id LIMIT 1
"""
BREAKS = {
    "sold_units_are_in_the_ledger": (
        "UPDATE orders_orderitem SET quantity = quantity + 1 WHERE unit_price = 0 AND shipped = 0"
    ),
    "shipped_units_are_in_the_ledger": MOVED.format(kind=6, states="3, 0"),
    "returned_units_are_in_the_ledger": MOVED.format(kind=8, states="0, 1"),
    "cancelled_units_are_in_the_ledger": MOVED.format(kind=7, states="3, 1"),
    "shipments_are_shipped_items": "UPDATE orders_shipment SET quantity = 9",
    "states_are_those_of_the_items": (
        "UPDATE orders_order SET state = 'shipped' WHERE state = 'partly_shipped'"
    ),
    "purchases_are_order_items": "UPDATE orders_customerpurchase SET units = 9 WHERE customer = 'ann'",
    "totals_are_the_sum_of_items": "UPDATE orders_order SET total = total + 1 WHERE customer = 'ann'",
    "refunds_were_paid_before": "UPDATE orders_order SET paid_at = NULL WHERE state = 'partly_shipped'",
    "keys_lead_to_their_orders": "UPDATE orders_idempotencykey SET status = 409 WHERE order_id IS NOT NULL",
    "changes_of_orders_were_published": "DELETE FROM orders_orderevent WHERE kind = 'shipped'",
}


@pytest.fixture
def shop() -> None:
    """A shop in which everything has happened once."""
    for sku, price in (("mug", "2.50"), ("pen", "1.00"), ("leaflet", "0.00")):
        ProductFactory.create(sku=sku, on_hand=50, price=Decimal(price))
    key = ClientKey("ann", "k", "f")
    checkout([("mug", 2), ("pen", 1)], "conditional_update", customer="ann", key=key)
    cancel(checkout([("mug", 3)], "combined", customer="bob").pk)
    paid = pay(checkout([("pen", 4)], "redis_lock").pk)
    ship(paid.pk, [("pen", 2)], "out")
    take_back(paid.pk, [("pen", 1)], "parcel")
    cancel_units(paid.pk, [("pen", 1)], "broken", lost=True)
    refund(paid.pk, Decimal("1.00"), "broken")
    checkout([("leaflet", 1)], "conditional_update")
    reserve([("mug", 4)], timedelta(minutes=5), "eve")
    checkout_reserved(reserve([("pen", 2)], timedelta(minutes=5), "ann").id)


def run(*args: str) -> str:
    """Run the command, and return what it says; CommandError when something is broken."""
    out = StringIO()
    call_command("audit_orders", *args, stdout=out)
    return out.getvalue()


def test_every_invariant_is_broken_here():
    """None is asked for that no test has seen fail."""
    assert set(BREAKS) == set(INVARIANTS)


@pytest.mark.parametrize("portion", [1, 2, 5000])
def test_a_sound_shop_is_clean(shop, monkeypatch, portion):
    """Whatever the portions are by which it is looked through."""
    monkeypatch.setattr(module, "PORTION", portion)
    assert audit() == []
    assert "✗" not in run()


@pytest.mark.parametrize("invariant", BREAKS)
def test_a_broken_invariant_is_found_and_named(shop, invariant):
    """By the audit, and by the command, which ends with an error."""
    with connection.cursor() as cursor:
        cursor.execute(BREAKS[invariant])
    assert {difference.invariant for difference in audit()} == {invariant}
    with pytest.raises(CommandError, match="break an invariant"):
        run()


def test_only_the_days_that_are_asked_for_are_looked_at(shop):
    """An hourly audit needs not read the years before."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE orders_order SET total = total + 1, created_at = now() - interval '3 days'")
    assert "✗" not in run("--days", "2")
    with pytest.raises(CommandError):
        run("--days", "4")
    with pytest.raises(CommandError, match="above 0"):
        run("--days", "0")


def test_what_the_ledger_has_archived_is_not_missed(shop):
    """An order of before the ledger's first entry has nothing there to compare with."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('inventory.archiving', txid_current()::text, true)")
        for table in ("inventory_reservation", "inventory_movement", "inventory_entry"):
            cursor.execute(f"DELETE FROM {table}")  # noqa: S608
    assert audit() == []


def test_an_audit_beside_a_sale_sees_one_moment(shop):
    """A buyer stops before its commit: nothing of it is seen, and then all."""
    with buyers() as start:
        buyer = start("A", partial(checkout, [("mug", 1)], "conditional_update"), "recorded").reaches(
            "recorded"
        )
        assert audit() == []
        buyer.ends()
    assert audit() == []
    assert Order.objects.count() == 6


@pytest.mark.parametrize("command", [["audit_orders"], ["stock", "audit"]], ids=lambda command: command[0])
def test_a_database_without_tables_is_said_in_a_line(command):
    """A user who has not migrated yet reads what to do."""
    with default_leads_to({"NAME": "postgres"}), pytest.raises(CommandError, match=r"manage\.py migrate"):
        call_command(*command, stdout=StringIO())
