"""Long statements that PostgreSQL parses and plans a few times, not each time.

Django's own cursors put the values into the text, so that no two texts are alike; these send them apart.
Behind a pooler that doesn't know prepared statements leave `prepare_threshold` out of the database's OPTIONS.
"""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.backends.utils import CursorWrapper


def prepared_cursor(using: str) -> CursorWrapper:
    """Return a cursor of Django's connection whose statements PostgreSQL remembers."""
    from psycopg import Cursor

    connection: Any = connections[using]
    connection.ensure_connection()
    wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
    wrapper: CursorWrapper = wrap(Cursor(connection.connection))
    return wrapper
