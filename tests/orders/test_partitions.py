"""The orders partitioned by id: the shop, its constraints and its audit still hold."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, connections, transaction

from orders.after_sale.lifecycle import cancel
from orders.audit import audit
from orders.catalog.products import create_product
from orders.models import Order
from orders.selling.checkout import checkout, place
from orders.selling.refusals import RepeatedKey
from orders.selling.writing import ClientKey
from tests import ROOT
from tests.factories import ProductFactory
from tests.orders.shelf import left
from tests.support.databases import default_leads_to

MIGRATION = ROOT / "ops" / "postgresql" / "partition_by_hash.sql"
PARTITIONED = {"orders_order": "id"}

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
    "foreign keys to it": ("|| others", ""),
    "checks, defaults and identity": (" INCLUDING ALL EXCLUDING INDEXES", ""),
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
                checkout([(product.sku, 2)], "combined")
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


def test_nothing_has_changed(partitioned):
    """Columns, checks, foreign keys in both directions, indexes and triggers are what they were.

    Only an order's number is unique with its id; the sequence that it comes from gives none twice.
    """
    assert unlike(partitioned["orders_order"], described("orders_order"), "id") == set()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_migration_that_leaves_something_out_is_noticed(changes, mutant):
    """By the comparison of the descriptions, or by PostgreSQL itself."""
    assert changes[1][mutant]


def test_nothing_counts_twice():
    """A cancelled order and a client's key still work once."""
    sku = ProductFactory.create(on_hand=3).sku
    order = checkout([(sku, 1)], "redis_lock")
    cancel(order.pk)
    cancel(order.pk)
    place([(sku, 1)], "combined", key=ClientKey("", "key-1", "fingerprint"))
    with pytest.raises(RepeatedKey):
        place([(sku, 1)], "combined", key=ClientKey("", "key-1", "fingerprint"))
    assert left(sku) == 2
    assert audit() == []


def test_an_order_with_items_cannot_be_deleted_behind_them():
    """Items still refer to orders: the foreign keys lead to the partitioned table."""
    order = checkout([(ProductFactory.create(on_hand=1).sku, 1)], "combined")
    with pytest.raises(IntegrityError), transaction.atomic():
        Order.objects.filter(pk=order.pk)._raw_delete("default")
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
