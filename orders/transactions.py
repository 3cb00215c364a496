"""The shop's transactions but for a sale's, which the strategy opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connection, transaction

from inventory.strategies.base import Progress, Understood

WAIT: Final = 10.0
"""Seconds to wait for a row that others have locked."""


@contextmanager
def change(cause: str, wait: float | None = None) -> Iterator[None]:
    """BEGIN, the block, COMMIT; an error of the database says what became of it.

    Args:
        cause: names the change, for the error. wait: seconds to wait for a locked row; None: `WAIT`.

    Raises:
        Busy: a row stayed locked. DatabaseUnavailable: the failure came before COMMIT: nothing was changed.
        OutcomeUnknown: COMMIT had no answer; repeat the change, which takes effect once.
    """
    progress = Progress()
    limit = f"{max(1, round((wait or WAIT) * 1000))}ms"
    with Understood(cause, connection, progress), transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [limit])
        yield
        progress.written = True
