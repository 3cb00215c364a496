"""What is known to be sold out is refused from memory: a crowd that comes too late costs no server anything.

A thread of the process looks at the stock of the products that were refused lately, several times within
`settings.SOLD_OUT_MEMORY` seconds, and between looks hears PostgreSQL announce stock that came back. What a
look has found counts for that long from the moment at which it *began*, or until a reservation expires, or
until the announcement. So the setting bounds for how long stock that is back can be refused, whatever becomes
of thread, connection or announcement; and where the connection is lost nothing is remembered at all.

Nobody is sold more by it: a buyer who isn't refused here is sold to as ever.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db import connections

from inventory.domain import Line, Shortage
from inventory.models import LAB_PREFIX
from inventory.segments import UNITS_INSIDE

logger = logging.getLogger(__name__)

MOST: Final = 1000
"""Products that are watched; the look is one short statement for all of them."""

IDLE_SECONDS: Final = 5.0
"""A product for which nobody has been refused for so long is watched no more; without any the thread ends."""

STEP_SECONDS: Final = 0.1
"""The thread notices within so many that it shall end."""

RETRY_SECONDS: Final = 1.0
"""After trouble with the connection, so long nothing is watched."""

LOOKS: Final = 3
"""Looks within the time for which one counts: one that is late is made up for by the next."""

# A reservation that has run out is as good as available: the next question to the database ends it.
_LOOK = f"""
SELECT sku, on_hand - reserved + backorder_limit
            + {UNITS_INSIDE}
            + coalesce(sum(quantity) FILTER (WHERE expires_at <= now()), 0),
       extract(epoch FROM min(expires_at) FILTER (WHERE expires_at > now()) - now())
  FROM inventory_product AS product
  LEFT JOIN inventory_stockreservation AS promise
    ON promise.product_id = product.id AND promise.state = 'live'
 WHERE sku = ANY(%s) GROUP BY product.id
"""  # noqa: S608


class Level(NamedTuple):
    """Units that are available, and until when (`monotonic`) that counts."""

    units: int
    until: float


class SoldOutMemory:
    """The levels of products that were refused lately, kept up to date by a thread of its own."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Know nothing; a forked child has no such thread."""
        self._levels: dict[str, Level] = {}
        self._watched: dict[str, float] = {}
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._starts_at = self._next_look = -math.inf

    def shortages(self, cart: Sequence[Line]) -> list[Shortage]:
        """Return the short lines of a cart as far as is known; none unless all of its products are known."""
        levels, now, short = self._levels, monotonic(), []
        for line in cart if levels else ():
            level = levels.get(line.sku)
            if level is None or now >= level.until:
                return []
            if level.units < line.quantity:
                short.append(Shortage(line.sku, line.quantity, max(0, level.units)))
        for shortage in short:
            self._watched[shortage.sku] = now
        return short

    def watch(self, skus: Iterable[str]) -> None:
        """Remember from now on what is available of products for which a buyer has just been refused."""
        now = monotonic()
        if not settings.SOLD_OUT_MEMORY > 0 or now < self._starts_at:
            return
        for sku in skus:
            if not sku.startswith(LAB_PREFIX) and (sku in self._watched or len(self._watched) < MOST):
                self._watched[sku] = now
        with self._mutex:
            if self._watched and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sold-out-memory", daemon=True)
                try:
                    self._thread.start()
                except (RuntimeError, MemoryError) as error:  # the next buyer who is refused starts it
                    self._thread = None
                    logger.warning("what is sold out is asked for each time, for now: %s", error)

    def stop(self) -> None:
        """Forget everything and wait for the thread to end."""
        self._watched = {}
        if thread := self._thread:
            thread.join()
        self._starts_at = -math.inf

    def _run(self) -> None:
        try:
            with listening() as connection:
                while self._forget_idle():
                    self.step(connection)
        except Exception as error:  # the driver's own, for nobody translates what comes unasked
            logger.warning("what is sold out is asked for each time, for now: %s", error)
            self._starts_at = monotonic() + RETRY_SECONDS
        finally:
            self._forget_all()

    def _forget_all(self) -> None:
        self._levels, self._next_look, self._thread = {}, -math.inf, None

    def step(self, connection: Any) -> None:
        """Look if it is time to, then hear announcements, first those that came in the middle of the look."""
        if monotonic() >= self._next_look:
            self.look(connection)
        for news in connection.notifies(timeout=min(settings.SOLD_OUT_MEMORY / LOOKS, STEP_SECONDS)):
            self._levels.pop(news.payload, None)

    def look(self, connection: Any) -> None:
        """Read the levels of all that is watched; they count from the moment before."""
        begun, bound = monotonic(), settings.SOLD_OUT_MEMORY
        self._next_look = begun + bound / LOOKS
        rows = connection.execute(_LOOK, [list(self._watched)]).fetchall()
        self._levels = {
            sku: Level(units, begun + min(bound, float(bound if expires is None else expires)))
            for sku, units, expires in rows
        }

    def _forget_idle(self) -> bool:
        """Watch no more what nobody asks for; return whether anything is left."""
        since = monotonic() - IDLE_SECONDS
        self._watched = {sku: asked for sku, asked in self._watched.copy().items() if asked >= since}
        return bool(self._watched)


@contextmanager
def listening() -> Iterator[Any]:
    """Give the block a connection of its own, in autocommit, that hears of stock that comes back.

    A pooler that shares connections between transactions doesn't pass announcements on: hence the setting.
    """
    wrapper = connections[settings.LISTEN_DATABASE].copy()
    wrapper.connect()
    try:
        wrapper.connection.execute("LISTEN inventory_stock")
        yield wrapper.connection
    finally:
        wrapper.close()


sold_out_memory: Final = SoldOutMemory()
