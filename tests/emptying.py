"""How the database is emptied between tests: rows are deleted, where Django truncates tables.

TRUNCATE makes a new file of each table and waits for the disk, whatever `synchronous_commit` says, and then
Django looks up every content type and permission again. That took longer than most tests.
"""

from collections.abc import Sequence
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.creation import DatabaseCreation
from django.db.backends.postgresql.operations import DatabaseOperations
from psycopg.pq import TransactionStatus

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


LIKE_NEW = (
    "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); "
    "DISCARD TEMP; DISCARD SEQUENCES"
)
"""DISCARD ALL, but for the prepared statements, which psycopg believes to be there."""


def renew_connections(_: object) -> bool:
    """Stand in for `_should_reload_connections`: give each test a session like a new one, not a new one.

    Opening one costs the server and the test some milliseconds, as much as many a test takes.
    """
    for connection in connections.all(initialized_only=True):
        if connection.alias != DEFAULT_DB_ALIAS or not _is_like_new(connection):
            connection.close()
    return False


def _is_like_new(connection: BaseDatabaseWrapper) -> bool:
    session = connection.connection
    if connection.vendor != "postgresql" or session is None or session.closed:
        return False
    if session.info.transaction_status != TransactionStatus.IDLE or not connection.get_autocommit():
        return False
    try:
        with connection.wrap_database_errors:
            session.execute(LIKE_NEW)
        connection.init_connection_state()
    except Error:
        return False
    return True


def drops(creation: DatabaseCreation, name: str, verbosity: int) -> None:
    """Stand in for `_destroy_test_db`: what a killed process had open may not have been noticed yet."""
    with creation._nodb_cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(f"DROP DATABASE {creation.connection.ops.quote_name(name)} WITH (FORCE)")
