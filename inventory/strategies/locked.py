"""A distributed lock per item around the transaction, by `locking`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar
from urllib.parse import quote

from inventory.conf import AliasSettings
from inventory.exceptions import Busy
from inventory.hooks import reach
from inventory.leading_connection import LeadingConnection
from inventory.lines import Line
from inventory.strategies.base import Sale, Strategy


class Locked(Strategy):
    """Idea:
        One lock per item, all or none for a cart. The transaction begins inside the lock and is committed
        before the release, so what runs under it may read what it decides by, and do work outside the
        database that must not overlap.

    Interleaving:
        A locks, takes the last unit, commits, and only then unlocks; the lock goes to B, which has waited in
        the queue and finds none.

    Verdict:
        Exact. If a lease ends under a paused holder, the statement that takes the units still refuses what
        isn't there; with `fenced` the database refuses the whole transaction before it reads anything.

    Cost:
        Two requests to the lock server around each sale; refused buyers wait in the queue, too.

    Options:
        lock: alias of `LOCKING`. fenced: check the fencing token in the database. shared_connection: who
        holds a lock sells over one connection that the process keeps for them, where connections are kept
        (`CONN_MAX_AGE`, PostgreSQL); docs/adr/0037 has what that brings.
    """

    name: ClassVar[str] = "locked"

    def __init__(
        self, settings: AliasSettings, lock: str = "default", fenced: bool = False,
        shared_connection: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        self.lock, self.fenced = lock, fenced
        self._leading = LeadingConnection(settings.database) if shared_connection else None

    def sell(self, sale: Sale) -> None:
        """Lock, BEGIN, take, write, COMMIT, unlock."""
        from locking import LockLost, LockNotAcquired, StaleFencingToken, get_lock, locked_transaction

        names = [*map(lock_name, sale.lines)]
        # Guarded, for the statement that takes units checks again.
        options: Any = {"backend": self.lock, "wait": sale.wait, "fenced": self.fenced, "guarded": True}
        reach("waiting")
        try:
            with ExitStack() as held:
                if self._leading and (lock := get_lock(*names, **options)).transaction_on is None:
                    held.enter_context(lock)  # the turn on the connection is for who needn't wait any more
                    held.enter_context(self._leading.in_use())
                with locked_transaction(*names, using=sale.using, **options):
                    reach("locked")
                    sale.in_transaction()
        except LockNotAcquired as error:
            raise Busy(str(error), retry_after=error.retry_after or 1.0) from error
        except (LockLost, StaleFencingToken) as error:  # raised before the commit only: nothing was sold
            raise Busy(str(error)) from error
        reach("unlocked")


def lock_name(line: Line) -> str:
    """Return the name of the lock of a line's item."""
    return f"inventory:{quote(line.sku, safe='')}"
