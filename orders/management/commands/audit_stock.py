"""`manage.py audit_stock`: do stock, ledger, orders, reservations and counts tell the same story?"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from inventory.models import Product
from inventory.strategies import STRATEGIES
from locking import BackendError
from orders.audit import REPAIRABLE, Difference, audit, counts, repair


class Command(BaseCommand):
    """Exit 0 when every invariant holds, 1 when one doesn't."""

    help = "Check the invariants of the stock; exit 1 and show the rows when one is broken."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the options."""
        parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
        parser.add_argument("--repair", action="store_true", help="write compensating rows, after asking")
        parser.add_argument("--yes", action="store_true", help="don't ask")

    def handle(self, *args: Any, **options: Any) -> None:
        """Audit, repair if wanted, audit again."""
        found = audit()
        if found and options["repair"]:
            found = self._repaired(found, options)
        self._tell_json(found) if options["json"] else self._tell(found)
        if found:
            sys.exit(1)

    def _repaired(self, found: list[Difference], options: dict[str, Any]) -> list[Difference]:
        mendable = [difference for difference in found if difference.invariant in REPAIRABLE]
        if not mendable or not (options["yes"] or self._agreed(mendable)):
            return found
        rows = repair()
        self.stderr.write(f"{rows} rows written")
        return audit()

    def _agreed(self, mendable: list[Difference]) -> bool:
        for difference in mendable:
            self.stderr.write(_line(difference))
        # Not as input's own prompt: that goes to the output, which may be JSON for a program.
        self.stderr.write(f"Write compensating rows for these {len(mendable)}? [y/N]")
        try:
            return input("").strip().lower() == "y"
        except EOFError:
            return False  # nobody is there to answer

    def _tell(self, found: list[Difference]) -> None:
        for difference in found:
            self.stdout.write(_line(difference))
        for invariant, broken in counts(found).items():
            self.stdout.write(f"{'BROKEN' if broken else 'ok':6} {invariant.replace('_', ' ')}")
        for strategy, drift in _drifts().items():
            self.stdout.write(f"drift  {strategy}: {drift}")

    def _tell_json(self, found: list[Difference]) -> None:
        document = {
            "broken": counts(found),
            "rows": [asdict(difference) for difference in found],
            "drift": _drifts(),
        }
        self.stdout.write(json.dumps(document, indent=2))


def _line(difference: Difference) -> str:
    invariant = difference.invariant.replace("_", " ")
    return f"{difference.what}: {invariant}: expected {difference.expected}, found {difference.found}"


def _drifts() -> dict[str, int | str]:
    """Return by strategy how many units its copy outside the database is off; at rest 0.

    The database decides whatever a copy says, so its drift breaks no invariant.
    """
    products = list(Product.objects.all())
    return {name: _drift(name, products) for name, strategy in STRATEGIES.items() if strategy.keeps_stock}


def _drift(name: str, products: list[Product]) -> int | str:
    try:
        return sum(abs(units) for units in STRATEGIES[name]().drift(products).values())
    except BackendError as error:
        return f"unknown: {error}"
