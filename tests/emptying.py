"""How the database is emptied between tests: rows are deleted, where Django truncates tables.

TRUNCATE makes a new file of each table and waits for the disk, whatever `synchronous_commit` says, and then
Django looks up every content type and permission again. That took longer than most tests.
"""

from collections.abc import Sequence
from typing import Any

from django.db.backends.postgresql.operations import DatabaseOperations

KEPT = {
    "django_content_type",
    "auth_permission",
}  # what migrations wrote, and post_migrate would write again

LOCK_ALL = """
DO $$
DECLARE deadline timestamptz := clock_timestamp() + interval '20 s';
BEGIN
    LOOP
        BEGIN
            SET LOCAL lock_timeout = '200ms';
            LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() > deadline THEN RAISE; END IF;
        END;
    END LOOP;
END $$
"""
"""Locks every table or none. A request that a server still answers takes tables in an order of its own: it
is let through, before PostgreSQL would end one of the two as a deadlock's victim (`deadlock_timeout`, 1 s).
"""


EMPTY_ALL = """
DO $$
DECLARE
    name text;
    filled boolean;
BEGIN
    PERFORM set_config('inventory.archiving', txid_current()::text, true);  -- opens the ledger
    PERFORM set_config('holdfast.prune', 'on', true);  -- and the events of locks
    FOREACH name IN ARRAY ARRAY[{tables}]::text[] LOOP
        CONTINUE WHEN pg_relation_size(name::regclass) = 0;
        EXECUTE 'SELECT EXISTS (SELECT FROM ' || name || ')' INTO filled;
        CONTINUE WHEN NOT filled;
        EXECUTE 'DELETE FROM ' || name;
    END LOOP;
END $$
"""
"""Deletes from the tables that have rows, in one round trip: most tests write to a few of fifty tables."""


def deletes(operations: DatabaseOperations, _: object, tables: Sequence[str], **options: Any) -> list[str]:
    """Stand in for `sql_flush`. As TRUNCATE does, it waits for transactions that are still open."""
    names = [operations.quote_name(table) for table in sorted(set(tables) - KEPT)]
    return [
        LOCK_ALL.format(tables=", ".join(names)),
        EMPTY_ALL.format(tables=_literals(names)),
    ]


def _literals(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
