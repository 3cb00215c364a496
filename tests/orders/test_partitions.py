"""The ledger partitioned by product, the orders by id: the shop, its constraints and its audit still hold."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, connections, transaction

from inventory.domain import Line
from inventory.models import StockMovement
from inventory.services import change_stock, create_product
from inventory.strategies import STRATEGIES
from orders.audit import audit
from orders.lifecycle import cancel
from orders.models import Order
from orders.order_writer import ClientKey, RepeatedKey
from orders.services import checkout, place
from tests import ROOT
from tests.conftest import ELSEWHERE
from tests.factories import ProductFactory
from tests.inventory.totals import totals_of
from tests.support.databases import default_leads_to
from tests.support.rush import served_at_once

MIGRATION = ROOT / "ops" / "postgresql" / "partition_by_hash.sql"
PARTITIONED = {"inventory_stockmovement": "product_id", "orders_order": "id"}
SOUND = [name for name, strategy in STRATEGIES.items() if strategy.sound and name not in ELSEWHERE]

DESCRIPTION = """
SELECT conrelid::regclass::text || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint
 WHERE conparentid = 0 AND (conrelid = %(name)s::regclass OR confrelid = %(name)s::regclass)
 UNION ALL
SELECT indexrelid::regclass::text, regexp_replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ')
  FROM pg_index WHERE indrelid = %(name)s::regclass
 UNION ALL
SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = %(name)s::regclass AND NOT tgisinternal
 UNION ALL
SELECT attname, format_type(atttypid, atttypmod) || ' ' || attnotnull || attidentity::text
       || coalesce(pg_get_expr(adbin, adrelid), '')
  FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
 WHERE attrelid = %(name)s::regclass AND attnum > 0
"""


def described(name: str) -> dict[str, str]:
    """Return all that the server knows of a table's columns, constraints, indexes and triggers."""
    with connection.cursor() as cursor:
        cursor.execute(DESCRIPTION, {"name": name})
        return dict(cursor.fetchall())


def partition(migration: str) -> None:
    """Do what the migration's head says."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(migration)
        for name, key in PARTITIONED.items():
            cursor.execute("SELECT partition_by_hash(%s, %s, 4)", [name, key])
        cursor.execute("DROP FUNCTION partition_by_hash")


MUTANTS = {
    "keys and foreign keys": ("IN ARRAY own ||", "IN ARRAY"),
    "indexes": ("|| indexes", ""),
    "triggers": ("|| triggers", ""),
    "foreign keys to it": ("|| others", ""),
    "checks, defaults and identity": (" INCLUDING ALL EXCLUDING INDEXES", ""),
    "the column in unique constraints of others": ("format(', %I)', key)", "')'"),
}
"""What the migration could leave out, and how its text would look then."""


def unlike(before: dict[str, str], now: dict[str, str], key: str) -> set[str]:
    """Return what has changed, but for unique constraints that have got the partitions' column."""
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return {name for name in changed if now.get(name) != before.get(name, "").replace(")", f", {key})")}


def outcome_of(mutant: tuple[str, str], before: dict[str, dict[str, str]]) -> str:
    """Partition by a migration that leaves something out, undo it, and return what is noticed."""
    text = MIGRATION.read_text()
    assert text.count(mutant[0]) == 1
    try:
        with transaction.atomic():
            partition(text.replace(*mutant))
            transaction.set_rollback(True)
            lost = [unlike(before[table], described(table), key) for table, key in PARTITIONED.items()]
            return "lost" if any(lost) else ""
    except DatabaseError as error:
        return str(error)


@pytest.fixture(scope="module")
def changes(django_db_setup, django_db_blocker):
    """Sell in a database of these tests' own and partition it; return its descriptions, and the mutants'."""
    name = f"{connections['default'].settings_dict['NAME']}_partitions"
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            cursor.execute(f'CREATE DATABASE "{name}"')
        try:
            with default_leads_to({"NAME": name}):
                call_command("migrate", verbosity=0)
                product = create_product("before", on_hand=5)
                checkout([Line(product.sku, 2)], "combined")
                before = {table: described(table) for table in PARTITIONED}
                noticed = {name: outcome_of(mutant, before) for name, mutant in MUTANTS.items()}
                partition(MIGRATION.read_text())
                yield before, noticed
        finally:
            with connection.cursor() as cursor:
                cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture(autouse=True)
def partitioned(changes):
    """Return the descriptions from before."""
    return changes[0]


def test_rows_from_before_are_there_and_numbers_go_on():
    """The old sale balances, and new movements get higher numbers than the old ones."""
    assert totals_of("before").sold == 2
    newest = StockMovement.objects.latest("pk").pk
    checkout([Line("before", 1)], "combined")
    assert StockMovement.objects.latest("pk").pk > newest
    assert audit() == []


@pytest.mark.parametrize("table", PARTITIONED)
def test_only_unique_constraints_have_changed(partitioned, table):
    """Columns, checks, foreign keys in both directions, indexes and triggers are what they were."""
    now = described(table)
    assert unlike(partitioned[table], now, PARTITIONED[table]) == set()
    assert (now == partitioned[table]) is (table == "orders_order")


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_migration_that_leaves_something_out_is_noticed(changes, mutant):
    """By the comparison of the descriptions, or by PostgreSQL itself."""
    assert changes[1][mutant]


@pytest.mark.parametrize("strategy", SOUND)
def test_every_sound_strategy_is_exact(strategy):
    """Six buyers, five units: five are served, one is refused, and the audit finds nothing."""
    sku = ProductFactory.create(on_hand=5).sku
    assert served_at_once(6, sku, strategy) == 5
    assert totals_of(sku).balanced
    assert audit() == []


def test_nothing_counts_twice():
    """A delivery's cause, a cancelled order and a client's key still work once: the constraints hold."""
    product = ProductFactory.create(on_hand=3)
    change_stock(product, StockMovement.Kind.RECEIVED, 1, f"note-1:{product.sku}")
    with pytest.raises(IntegrityError):
        change_stock(product, StockMovement.Kind.RECEIVED, 1, f"note-1:{product.sku}")
    order = checkout([Line(product.sku, 1)], "row_lock")
    cancel(order.pk)
    cancel(order.pk)
    place([Line(product.sku, 1)], "row_lock", key=ClientKey("", "key-1", "fingerprint"))
    with pytest.raises(RepeatedKey):
        place([Line(product.sku, 1)], "row_lock", key=ClientKey("", "key-1", "fingerprint"))
    assert totals_of(product.sku).left == 3
    assert audit() == []


def test_a_cause_without_its_product_could_count_twice():
    """What partitions cost: one cause for two products is not refused, so a cause must name its product."""
    one, other = ProductFactory.create(on_hand=0), ProductFactory.create(on_hand=0)
    change_stock(one, StockMovement.Kind.RECEIVED, 1, "note-2")
    change_stock(other, StockMovement.Kind.RECEIVED, 1, "note-2")
    assert StockMovement.objects.filter(cause="note-2").count() == 2


def test_the_ledger_is_immutable_in_its_partitions():
    """The trigger refuses a change of the table, and of each part that has rows."""
    for _ in range(8):
        ProductFactory.create(on_hand=1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT tableoid::regclass::text FROM inventory_stockmovement")
        filled = [row[0] for row in cursor.fetchall()]
    assert len(filled) > 1
    for table in ["inventory_stockmovement", *filled]:
        with connection.cursor() as cursor, pytest.raises(DatabaseError, match="immutable"):
            cursor.execute(f"UPDATE {table} SET quantity = quantity + 1")  # noqa: S608


def test_an_order_with_items_cannot_be_deleted_behind_them():
    """Items still refer to orders: the foreign keys lead to the partitioned table."""
    order = checkout([Line(ProductFactory.create(on_hand=1).sku, 1)], "combined")
    with pytest.raises(IntegrityError), transaction.atomic():
        Order.objects.filter(pk=order.pk)._raw_delete("default")
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_a_question_about_one_product_reads_one_partition():
    """PostgreSQL looks into the only part that can have its movements."""
    product = ProductFactory.create(on_hand=1)
    plan = StockMovement.objects.filter(product=product).explain()
    assert sum(f"inventory_stockmovement_{number}" in plan for number in range(4)) == 1


@pytest.mark.parametrize("table", ["inventory_stockmovement", "orders_order"])
def test_partitions_by_month_would_lose_what_counts_once(table):
    """By date PostgreSQL takes neither the ledger's unique cause nor the key that items refer to."""
    refused = pytest.raises(DatabaseError, match="must include all partitioning columns")
    with refused, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE by_month (LIKE {table}) PARTITION BY RANGE (created_at)")
        cursor.execute("CREATE UNIQUE INDEX ON by_month (id)")
