"""`manage.py reconcile_stock`: settle what dead buyers left beside the database."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from inventory.strategies import STRATEGIES
from locking import BackendUnavailable


class Command(BaseCommand):
    """Asks the database about every sale that a strategy's ledger still has. Safe while the shop is open."""

    help = (
        "Settle the sales that dead buyers left in the ledgers of redis_gate, segmented, async_reserve and"
        " unit_rows: those with an order are struck, the units of the others go back on sale. Rebuild copies"
        " of the stock (redis_script's too) that have drifted from the database."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the age of what may be settled."""
        parser.add_argument(
            "--older-than",
            type=float,
            default=30.0,
            metavar="SECONDS",
            help="leave younger sales alone: their buyers may be at work (default 30)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Reconcile every strategy; one whose server is down is named, the others are done all the same."""
        if options["older_than"] < 0:
            raise CommandError(f"--older-than is {options['older_than']:g}: it can't be below 0")
        down = [name for name in STRATEGIES if not self._reconciled(name, options["older_than"])]
        if down:
            raise CommandError(f"not reconciled, run it again later: {', '.join(down)}")

    def _reconciled(self, name: str, older_than: float) -> bool:
        try:
            done = STRATEGIES[name]().reconcile(older_than)
        except BackendUnavailable as error:
            self.stderr.write(f"{name}: {error}")
            return False
        if done.settled or done.voided or done.rebuilt:
            self.stdout.write(
                f"{name}: {done.settled} settled, {done.voided} voided, {done.rebuilt} rebuilt."
            )
        return True
