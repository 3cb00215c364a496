"""The database's clock: deadlines are set and compared by it alone."""

from __future__ import annotations

from typing import Any

from django.db.models import functions


class Now(functions.Now):
    """The database's time in UTC; Django's is the session's on MySQL."""

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        """Return MySQL's and MariaDB's expression."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra)
