"""Long statements that the server parses and plans a few times, not each time.

For the statement that writes an order both take the server four times as long as the work itself. Django's
own cursors put the values into the text, so that no two texts are alike; these send them apart.
"""

from __future__ import annotations

from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.utils import CursorWrapper
from psycopg import Cursor

from inventory.connection_check import check_connection


def prepared_cursor() -> CursorWrapper:
    """Return a cursor of Django's connection whose statements the server remembers.

    It does so after a few runs on a connection, if `OPTIONS["prepare_threshold"]` of the database says after
    how many; without it nothing is remembered. Behind a pooler that gives a connection to somebody else after
    each transaction (pgbouncer before 1.21) leave it out.
    """
    check_connection()  # as Django's own cursor does: this may be the first statement of a request
    connection = connections[DEFAULT_DB_ALIAS]  # looked up once; the proxy does so for each attribute
    connection.ensure_connection()
    wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
    cursor: Any = Cursor(connection.connection)
    return wrap(cursor)
