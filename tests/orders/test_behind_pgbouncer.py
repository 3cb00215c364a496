"""The shop behind a real pgbouncer that pools transactions: what works, and what must go around it."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction
from inventory.services import change_stock
from inventory.sold_out_memory import listening, sold_out_memory

from inventory import Line, SoldOut
from inventory.models import StockMovement
from inventory.statements import prepared_cursor
from inventory.strategies import STRATEGIES
from orders.after_sale.lifecycle import cancel, pay
from orders.audit import audit
from orders.selling import reservations
from orders.selling.checkout import checkout
from tests.conftest import ELSEWHERE
from tests.factories import ProductFactory
from tests.inventory.interleaving import eventually
from tests.inventory.totals import totals_of
from tests.support.databases import another_way, default_leads_to
from tests.support.pgbouncer import needs_pgbouncer, pgbouncer, version
from tests.support.rush import served_at_once

pytestmark = [pytest.mark.django_db(transaction=True), needs_pgbouncer]

SOUND = [name for name, strategy in STRATEGIES.items() if strategy.sound and name not in ELSEWHERE]
UNPREPARED = {"prepare_threshold": None}
"""What PREPARE_THRESHOLD=0 sets."""


@pytest.fixture(scope="module")
def pooled(django_db_setup, django_db_blocker):
    """Return the entry of `default` that leads through a pgbouncer with three connections."""
    with (
        django_db_blocker.unblock(),
        pgbouncer(connections["default"].settings_dict, "transaction", 3) as entry,
    ):
        yield {**entry, "OPTIONS": {**entry["OPTIONS"], **UNPREPARED}}


@pytest.fixture
def shop(pooled):
    """Have the shop ask its database through the pooler."""
    with default_leads_to(pooled):
        yield


def backend_of(cursor) -> int:
    """Return the process of PostgreSQL that answers."""
    cursor.execute("SELECT pg_backend_pid()")
    return int(cursor.fetchone()[0])


@pytest.mark.parametrize("strategy", SOUND)
def test_every_sound_strategy_is_exact_through_it(shop, strategy):
    """Twelve buyers, ten units, three connections: ten are served, two refused, the audit finds nothing."""
    sku = ProductFactory.create(on_hand=10).sku
    assert served_at_once(12, sku, strategy) == 10
    assert totals_of(sku).balanced
    assert audit() == []


def test_the_rest_of_an_orders_life_works_through_it(shop):
    """Reserving, paying and cancelling need no session, and the audit's snapshot is its transaction's."""
    sku = ProductFactory.create(on_hand=3).sku
    reservations.reserve([Line(sku, 1)], timedelta(minutes=5))
    kept, given_back = checkout([Line(sku, 1)], "conditional_update"), checkout([Line(sku, 1)], "combined")
    pay(kept.pk)
    cancel(given_back.pk)
    assert totals_of(sku).left == 2
    assert audit() == []


def test_the_ledger_stays_immutable_through_it(shop):
    """The trigger asks a setting of the transaction, which no other client's transaction inherits."""
    movement = StockMovement.objects.get(product=ProductFactory.create(on_hand=1))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('holdfast.lab', 'on', true)")
    with pytest.raises(DatabaseError, match="immutable"), connection.cursor() as cursor:
        cursor.execute("DELETE FROM inventory_stockmovement WHERE id = %s", [movement.pk])


def test_a_limit_of_waiting_ends_with_its_transaction(pooled):
    """Two clients share one connection; a lock_timeout of the first one's transaction ends with it."""
    with pgbouncer(pooled | direct(), "transaction", 1) as entry, default_leads_to(entry):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = 1234")
            first = backend_of(cursor)
        with closing(connections["default"].copy()) as other, other.cursor() as cursor:
            assert backend_of(cursor) == first
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("0",)


def direct():
    """Return what leads past the pooler: where the test's database really is."""
    known = connections["default"].settings_dict
    return {name: known[name] for name in ("HOST", "PORT")}


@pytest.mark.skipif(
    needs_pgbouncer.args[0] or version() >= (1, 21), reason="since 1.21 it prepares by itself"
)
def test_prepared_statements_must_be_left_out(pooled):
    """Two clients of one connection prepare under the same name, and the server refuses the second."""
    remembering = {"OPTIONS": {**pooled["OPTIONS"], "prepare_threshold": 0}}
    with (
        pgbouncer(pooled | direct(), "transaction", 1) as entry,
        default_leads_to(entry | remembering),
        prepared_cursor() as cursor,
    ):
        cursor.execute("SELECT %s::int", [1])
        with closing(connections["default"].copy()) as other:
            other.ensure_connection()
            with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
                psycopg.Cursor(other.connection).execute("SELECT %s::int", [1])


def sell_out(sku: str) -> None:
    """Sell the only unit, and have the next buyer refused until the refusal comes from memory."""
    checkout([Line(sku, 1)], "conditional_update")
    with pytest.raises(SoldOut):
        checkout([Line(sku, 1)], "conditional_update")
    eventually(lambda: bool(sold_out_memory.shortages([Line(sku, 1)])), "the refusal is remembered")


def is_sold(sku: str) -> bool:
    """Ask for one unit, and return whether it was to be had."""
    try:
        checkout([Line(sku, 1)], "conditional_update")
    except SoldOut:
        return False
    return True


def test_announcements_go_around_it(pooled, settings):
    """With a direct way for LISTEN stock that came back is sold long before the remembered refusal ends."""
    settings.SOLD_OUT_MEMORY, settings.LISTEN_DATABASE = 60.0, "direct"
    past = dict(connections.settings["default"])
    with another_way("direct", past), default_leads_to(pooled):
        try:
            product = ProductFactory.create(on_hand=1)
            sell_out(product.sku)
            change_stock(product, StockMovement.Kind.RECEIVED, 1, "note-1")
            eventually(lambda: not sold_out_memory.shortages([Line(product.sku, 1)]), "the announcement")
            checkout([Line(product.sku, 1)], "conditional_update")
        finally:
            sold_out_memory.stop()


def test_a_refusal_from_memory_is_bounded_where_announcements_get_lost(shop, settings):
    """Without the direct way stock that came back is refused for SOLD_OUT_MEMORY at most, then sold."""
    settings.SOLD_OUT_MEMORY = 0.25
    try:
        product = ProductFactory.create(on_hand=1)
        sell_out(product.sku)
        change_stock(product, StockMovement.Kind.RECEIVED, 1, "note-1")
        eventually(lambda: is_sold(product.sku), "the end of the refusal")
    finally:
        sold_out_memory.stop()


def test_an_announcement_reaches_another_client_than_the_listener(pooled):
    """LISTEN stays on the server's connection: the client that has it later gets the announcement."""
    with pgbouncer(pooled | direct(), "transaction", 1) as entry, default_leads_to(entry):
        product = ProductFactory.create(on_hand=0)
        with listening():
            connection.ensure_connection()
            heard: list[str] = []
            connection.connection.add_notify_handler(lambda notice: heard.append(notice.payload))
            change_stock(product, StockMovement.Kind.RECEIVED, 1, "note-1")
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            assert heard == [product.sku]
