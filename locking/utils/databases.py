"""What the fence must know of each database: names it keeps apart, limits of waiting, and its errors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, Final

from django.db import DatabaseError, Error, InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.utils import timezone

from locking.exceptions import LockTransactionError

VENDORS: Final = ("postgresql", "mysql", "sqlite")
MAX_NAME: Final = 255

OVERTAKEN: Final = frozenset({"40001", "40P01", 1213, 1020})
"""Serialization failures and deadlocks: the database rolled back, and the whole work may be done again."""
# These end MySQL's transaction: a deadlock, a row changed under innodb_snapshot_isolation, no memory.
ROLLED_BACK: Final = frozenset({1213, 1020, 1206})
LOCKED_OUT: Final = frozenset({"55P03", 1205})
CONNECTION_LOST: Final = frozenset({2006, 2013, 2055, 4031})
SESSION_ENDED: Final = frozenset({"57P01", 4031})
"""The last words of a server that has ended a session: nothing of it is at work any more."""
STOOD_IDLE: Final = "25P03"  # the database has ended a transaction that did nothing for too long
PSYCOPG_IDLE: Final = 0  # TransactionStatus.IDLE, in psycopg 2 and 3 alike

NO_SLOT: Final = {
    "too many connections for role": "the role's CONNECTION LIMIT",
    "too many connections for database": "the database's CONNECTION LIMIT",
    "too many clients already": "max_connections",
    "remaining connection slots are reserved": "max_connections",
    "max_client_conn": "max_client_conn of pgbouncer",
}
MYSQL_NO_SLOT: Final[dict[object, str]] = {
    1040: "max_connections",
    1203: "max_user_connections",
    1226: "the account's MAX_USER_CONNECTIONS",
}


def fence_name(key: str, vendor: str) -> str:
    """Return the primary key of a lock's fence row: the lock's key, or a hash where that wouldn't do."""
    # MySQL compares without regard to case and trailing blanks: two locks would share a row there.
    alphabet = r"[a-z0-9!-@\[-`{-~]+" if vendor == "mysql" else r"[^\x00]+"
    if len(key) <= MAX_NAME and re.fullmatch(alphabet, key):
        return key
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def storable(name: str) -> str:
    """Return a lock's name or key as any database keeps it: PostgreSQL's text has no NUL."""
    return name.replace("\0", "\N{SYMBOL FOR NULL}")


class UtcNow(Now):
    """The database's time in UTC; Django's own `Now` is in the session's time zone on MySQL."""

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        """Return MySQL's and MariaDB's expression."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra)


def timestamp(connection: BaseDatabaseWrapper) -> Any:
    """Return this process's time as this database takes it in plain SQL: to be shown, never to decide."""
    return connection.ops.adapt_datetimefield_value(timezone.now())  # noqa: TID251 shown


def limit_waits(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """Bound how long a frozen holder's transaction can block others: waiting, and idle."""
    # SET takes no snapshot, so the fence stays the first statement that does.
    if inside_test_case(connection):
        return  # they would last until the end of the test
    milliseconds = round(seconds * 1000)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                f"SET LOCAL lock_timeout = {milliseconds};"
                f" SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
            )
        elif connection.vendor == "mysql":
            cursor.execute(
                "SET @holdfast_wait = @@innodb_lock_wait_timeout,"
                f" SESSION innodb_lock_wait_timeout = {max(1, round(seconds))}"
            )


def restore_waits(connection: BaseDatabaseWrapper) -> None:
    """MySQL's limit belongs to the session, which others will use after us."""
    if connection.vendor == "mysql" and not inside_test_case(connection):
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = @holdfast_wait")


def inside_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether a TestCase has wrapped its test in a transaction, which outlives every section in it."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def refuse_snapshots(connection: Any) -> None:
    """MySQL's REPEATABLE READ lets a transaction write over what its own snapshot doesn't show."""
    if connection.vendor != "mysql":
        return
    with connection.cursor() as cursor:
        variable = "tx_isolation" if connection.mysql_is_mariadb else "transaction_isolation"
        cursor.execute(f"SELECT @@{variable}")
        if cursor.fetchone()[0] != "REPEATABLE-READ":
            return
        cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
        row = cursor.fetchone()
    if row is None or row[1] != "ON":
        raise LockTransactionError(
            f"fenced=True on database {connection.alias!r}: under REPEATABLE READ this server writes over"
            " rows that changed since they were read; set OPTIONS['isolation_level'] to 'read committed'"
            " (Django's default), or innodb_snapshot_isolation=ON where MariaDB has it"
        )


def note_rollback(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    """Wrap a statement: have Django know where its error has rolled back the whole transaction."""
    # MySQL and SQLite do so with some errors, and run what comes next by itself. PostgreSQL refuses it.
    try:
        return execute(sql, params, many, context)
    except DatabaseError as error:
        connection = context["connection"]
        if connection.vendor == "sqlite":
            ended = not (connection.connection is None or connection.connection.in_transaction)
        else:
            ended = connection.vendor == "mysql" and code_of(error) in ROLLED_BACK
        if ended and connection.in_atomic_block:
            connection.needs_rollback, connection.rollback_exc = True, error
        raise


# errors


def code_of(error: BaseException) -> str | int | None:
    """Return the SQLSTATE of a PostgreSQL error, the number of a MySQL one, or None."""
    if error.args and isinstance(error.args[0], int):
        return error.args[0]
    state: str | None = getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
    return state


def was_overtaken(error: BaseException) -> bool:
    """Whether the database gave this transaction up for another's sake, so that it may be done again."""
    return isinstance(error, DatabaseError) and code_of(error) in OVERTAKEN


def was_locked_out(error: BaseException) -> bool:
    """Whether a row stayed locked for as long as the limit allows."""
    return isinstance(error, OperationalError) and code_of(error) in LOCKED_OUT


def reply_was_lost(error: BaseException) -> bool:
    """Whether the connection broke, so that it isn't known what the server did."""
    if isinstance(error, InterfaceError):
        return True
    code = code_of(error)
    silent = code is None or code in CONNECTION_LOST or str(code).startswith(("08", "57P"))
    return isinstance(error, OperationalError) and silent


def may_still_commit(connection: BaseDatabaseWrapper, error: BaseException) -> bool:
    """Whether the server may be at work on a COMMIT, or have stored it, whose wait has ended in `error`.

    An error of the database is its answer, unless the connection broke without a word. Anything else is what
    a signal's handler has raised: psycopg waits for the end of the statement on Ctrl-C and SystemExit alone,
    and PyMySQL never does. SQLite commits in this process, so nothing runs on there.
    """
    if connection.vendor == "sqlite":
        return False
    if isinstance(error, Error):
        return reply_was_lost(error) and code_of(error) not in SESSION_ENDED
    info = getattr(connection.connection, "info", None)
    return getattr(info, "transaction_status", None) != PSYCOPG_IDLE


def setting_too_small(error: BaseException) -> str | None:
    """Return which setting of the server left no slot for this connection; None for any other error."""
    # libpq doesn't tell the SQLSTATE of a connection that was refused: PostgreSQL's own texts are compared.
    if not isinstance(error, OperationalError):
        return None
    code = code_of(error)
    texts = NO_SLOT.items() if not isinstance(code, int) else ()
    return MYSQL_NO_SLOT.get(code) or next((name for text, name in texts if text in str(error)), None)
