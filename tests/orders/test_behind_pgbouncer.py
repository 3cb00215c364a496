"""The shop behind a real pgbouncer that pools transactions: what works, and what must go around it."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from django.db import IntegrityError, connection, connections, transaction

from inventory import Line
from inventory.statements import prepared_cursor
from orders.after_sale.lifecycle import cancel, pay
from orders.audit import audit
from orders.selling import reservations
from orders.selling.checkout import checkout
from orders.selling.strategies import names
from tests.factories import ProductFactory
from tests.orders.shelf import left
from tests.support.databases import default_leads_to
from tests.support.pgbouncer import needs_pgbouncer, pgbouncer, version
from tests.support.rush import served_at_once

pytestmark = [pytest.mark.django_db(transaction=True), needs_pgbouncer]

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


@pytest.mark.parametrize("strategy", names())
def test_every_sound_strategy_is_exact_through_it(shop, strategy):
    """Twelve buyers, ten units, three connections: ten are served, two refused, the audit finds nothing."""
    sku = ProductFactory.create(on_hand=10).sku
    assert served_at_once(12, sku, strategy) == 10
    assert left(sku) == 0
    assert audit() == []


def test_the_rest_of_an_orders_life_works_through_it(shop):
    """Reserving, paying and cancelling need no session, and the audit's snapshot is its transaction's."""
    sku = ProductFactory.create(on_hand=3).sku
    reservations.reserve([Line(sku, 1)], timedelta(minutes=5))
    kept, given_back = checkout([Line(sku, 1)], "conditional_update"), checkout([Line(sku, 1)], "combined")
    pay(kept.pk)
    cancel(given_back.pk)
    assert left(sku) == 1
    assert audit() == []


def test_the_ledger_stays_immutable_through_it(shop):
    """The trigger asks a setting of the transaction, which no other client's transaction inherits."""
    ProductFactory.create(on_hand=1)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('inventory.archiving', txid_current()::text, true)")
    with pytest.raises(IntegrityError, match="never changed or deleted"), connection.cursor() as cursor:
        cursor.execute("DELETE FROM inventory_movement")


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
        prepared_cursor("default") as cursor,
    ):
        cursor.execute("SELECT %s::int", [1])
        with closing(connections["default"].copy()) as other:
            other.ensure_connection()
            with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
                psycopg.Cursor(other.connection).execute("SELECT %s::int", [1])
