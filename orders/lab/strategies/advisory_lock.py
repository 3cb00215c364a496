"""Sound: PostgreSQL's own locks on numbers."""

from __future__ import annotations

from uuid import UUID

from django.db import connection

from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy, lock_names

# Sorted by the number, not by the name: two names may share a number, and then the names' order is a circle.
_LOCK = """
SELECT pg_advisory_xact_lock(number)
FROM (SELECT DISTINCT hashtextextended(name, 0) AS number FROM unnest(%s::text[]) AS name ORDER BY 1) AS each
"""


class AdvisoryLock(Strategy):
    """Idea:
        pg_advisory_xact_lock(n) locks the number n until the transaction ends. A name becomes a number by a
        hash. No table, no row.

    Interleaving:
        A locks the number of `sku:mug`, reads 1, saves 0. B waits in its SELECT until A's commit, then reads
        0.

    Verdict:
        Exact, as every lock that the transaction itself lets go. The form without `xact` belongs to the
        session: it outlives the commit, and behind a pooler in transaction mode it stays with a connection
        that belongs to another client by then.

    Cost:
        One statement and a slot of shared memory for each name. Two names may share a number: they wait for
        each other without need, and do no harm.
    """

    name = "advisory_lock"
    sound = True

    def sell(self, cart: Cart) -> UUID:
        """Lock the numbers, lowest first, then read, decide and subtract."""
        with self.transaction():
            self.checkpoint("waiting")
            with connection.cursor() as cursor:
                cursor.execute(_LOCK, [lock_names(self, cart)])
            self.checkpoint("locked")
            products = self.read(cart)
            self.decide(cart, products)
            self.take(cart, products)
            return self.record(cart, products)
