"""The default: one statement checks and takes, and the database alone decides."""

from __future__ import annotations

from typing import ClassVar

from inventory.strategies.base import Sale, Strategy


class ConditionalUpdate(Strategy):
    """Idea:
        Lock the levels, compare, insert entry and movements: one statement. What is short by the last
        committed state isn't locked at all.

    Interleaving:
        A takes the last unit. B's statement waits for A's commit, reads the level again, and finds none. If A
        rolls back instead, B finds the unit and takes it.

    Verdict:
        Exact, with no lock to forget and no server but the database.

    Cost:
        The level is locked from the statement to the commit, so `write` should be short.
    """

    name: ClassVar[str] = "conditional_update"
    leads: ClassVar[bool] = False

    def sell(self, sale: Sale) -> None:
        """BEGIN, take, write, COMMIT."""
        sale.in_transaction()
