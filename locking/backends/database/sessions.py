"""PostgreSQL's sessions as holds: the lock lives in the server's memory, and only as long as its session.

The lease is the server's too: `idle_session_timeout` ends a session that was silent for the ttl, whatever its
client does, so that a frozen holder stands in nobody's way for longer.
"""

from __future__ import annotations

import hashlib
import select
import threading
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import finalize

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.backends.database.connection_pool import ConnectionPool, discard
from locking.utils.databases import was_locked_out

IDLE_NAME: Final = "holdfast"

PREPARE_TO_WAIT: Final = """
SELECT set_config('lock_timeout', %(wait)s, false),
       set_config('client_connection_check_interval', '1s', false)
"""
KEEP: Final = """
SELECT set_config('application_name', %(owner)s, false), set_config('idle_session_timeout', %(ttl)s, false),
       pg_backend_pid()
"""
PID: Final = "SELECT pg_backend_pid()"


class Statements(NamedTuple):
    """What acquires and releases one form of the lock."""

    try_acquire: str
    wait: str
    release: str


def _statements(form: str) -> Statements:
    return Statements(
        f"""
SELECT CASE WHEN pg_try_advisory_lock{form}(%(number)s) THEN
       set_config('application_name', %(owner)s, false) || set_config('idle_session_timeout', %(ttl)s, false)
       END IS NOT NULL, pg_backend_pid()
""",
        f"SELECT pg_advisory_lock{form}(%(number)s)",
        f"""
SELECT pg_advisory_unlock{form}(%(number)s), set_config('idle_session_timeout', '0', false),
       set_config('application_name', %(idle)s, false), pg_backend_pid()
""",
    )


EXCLUSIVE: Final = _statements("")
SHARED: Final = _statements("_shared")


def number_of(key: str) -> int:
    """Return the 64-bit number by which PostgreSQL knows the lock.

    Two names in 2**64 share one; they then exclude each other, which is slow and not wrong.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8, person=b"holdfast").digest()
    return int.from_bytes(digest, "big", signed=True)


def as_milliseconds(seconds: float) -> str:
    """Return a length of time as PostgreSQL's settings take it: at least 1 ms, for 0 means without end."""
    return f"{max(1, round(seconds * 1000))}ms"


class Session:
    """One session that holds one lock."""

    def __init__(
        self, connection: BaseDatabaseWrapper, pid: int, number: int, owner: str, statements: Statements
    ) -> None:
        self.connection = connection
        self._pid, self._number, self.owner = pid, number, owner
        self._statements = statements
        self._mutex = threading.Lock()
        self._broken = False  # the connection failed under a request, and the server had said nothing
        self._end = finalize(self, discard, connection)

    def is_alive(self) -> bool:
        """Whether the connection still stands; asks nobody but the socket."""
        raw = self.connection.connection
        if raw is None or raw.closed:
            return False
        if not self._mutex.acquire(blocking=False):
            return True  # a request is on its way, and will find out
        try:
            return _is_quiet(raw)
        finally:
            self._mutex.release()

    def keep(self, ttl: float) -> bool:
        """Have the lease last `ttl` seconds from now; False when the session has ended."""
        asked = {"owner": self.owner, "ttl": as_milliseconds(ttl)}
        row = self._ask(KEEP, asked)
        return row is not None and row[-1] == self._pid

    def release(self, pool: ConnectionPool) -> bool:
        """Release the lock and give the session back; False when it had ended.

        A connection that breaks under the request ends the lock too, so that the release has worked.
        """
        was_alive = self.is_alive()
        row = self._ask(self._statements.release, {"number": self._number, "idle": IDLE_NAME})
        if row is None:
            return was_alive and self._broken
        if row[-1] != self._pid or not row[0]:
            discard(self.connection)
            return False
        self._end.detach()
        pool.give_back(self.connection)
        return True

    def _ask(self, statement: str, asked: dict[str, Any]) -> Any:
        """Return the row, or None when the session has ended: the lock has ended with it, that is sure."""
        with self._mutex:
            if self.connection.connection is None:
                return None
            try:
                with self.connection.cursor() as cursor:
                    cursor.execute(statement, asked)
                    return cursor.fetchone()
            except Error as error:
                self._broken = not _is_an_answer(error)
                discard(self.connection)
                return None


def _is_an_answer(error: Error) -> bool:
    """Whether the server itself said that the session is over."""
    return getattr(error.__cause__, "sqlstate", None) is not None


def _is_quiet(raw: Any) -> bool:
    """Whether the server has said nothing that ends the session."""
    try:
        if select.select([raw.fileno()], [], [], 0)[0]:
            raw.pgconn.consume_input()
    except Exception:  # whatever is wrong with it, it isn't alive
        return False
    return not raw.closed


def wait_in_line(
    connection: BaseDatabaseWrapper, statements: Statements, number: int, seconds: float, patience: float
) -> bool:
    """Wait in the server's own queue for at most `seconds`; False when they are over."""
    raw: Any = connection.connection
    bounded = raw.wait
    with connection.cursor() as cursor:
        cursor.execute(PREPARE_TO_WAIT, {"wait": as_milliseconds(seconds)})
        if isinstance(bounded, partial):
            raw.wait = partial(bounded.func, timeout=seconds + patience)
        try:
            cursor.execute(statements.wait, {"number": number})
        except Error as error:
            if was_locked_out(error):
                return False
            raise
        finally:
            with suppress(AttributeError):
                raw.wait = bounded
    return True
