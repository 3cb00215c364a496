"""What became of a COMMIT whose answer was lost: the fence's row has the mark of the last transaction."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from django.db import Error, connections

from locking.utils.clock import jittered
from locking.utils.databases import limit_waits, timestamp, was_locked_out

logger = logging.getLogger(__name__)

TRIES: Final = 5
"""How often a database that doesn't answer is asked, over about a second and a half."""

# Touches the row without changing it: unlike a SELECT it also waits for a row that is just being inserted.
TOUCH: Final = """
INSERT INTO locking_fence (name, token, owner, mark, updated_at) VALUES (%s, 0, '', '', %s)
ON CONFLICT (name) DO UPDATE SET mark = locking_fence.mark RETURNING token, mark
"""
LOCK: Final = "SELECT token, mark FROM locking_fence WHERE name = %s FOR UPDATE"

NOTHING: Final = "the fence row says that nothing was committed"
UNSETTLED: Final = "whether it was committed isn't known: the fence row couldn't tell"


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """The row that tells whether a transaction was committed; its mark is of this transaction alone."""

    alias: str
    name: str
    token: int
    mark: str
    timeout: float

    def was_committed(self) -> bool | None:
        """Ask over a new connection, which waits until the transaction has ended; None when it can't be
        committed.
        """
        connection = connections[self.alias].copy()
        # The connections of Django's pool broke with the one that was lost. The options are the copy's own.
        connection.settings_dict["OPTIONS"].pop("pool", None)
        with closing(connection):
            connection.set_autocommit(False)
            try:
                limit_waits(connection, self.timeout)
                with connection.cursor() as cursor:
                    if connection.vendor == "mysql":
                        cursor.execute(LOCK, [self.name])
                    else:
                        cursor.execute(TOUCH, [self.name, timestamp(connection)])
                    token, mark = cursor.fetchone()
            finally:
                if connection.connection is not None and connection.is_usable():
                    connection.rollback()
        if mark == self.mark:
            return True
        return None if token > self.token else False


def resolve(marker: CommitMarker, error: Error) -> bool | None:
    """Return whether a transaction was committed although COMMIT ended in `error`, which gets a note if not;
    None where it can't be known.
    """
    committed = None
    for attempt in range(TRIES):
        try:
            committed = marker.was_committed()
            break
        except Error as silence:
            logger.warning("can't tell yet what became of a COMMIT on %r: %s", marker.alias, silence)
            if was_locked_out(silence):
                break  # it was waited for long enough
        time.sleep(jittered(attempt, first=0.1, cap=1.0))
    if committed:
        logger.warning("the answer to a COMMIT on database %r was lost; it was committed", marker.alias)
    else:
        error.add_note(NOTHING if committed is False else UNSETTLED)
    return committed
