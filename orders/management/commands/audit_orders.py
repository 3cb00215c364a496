"""`manage.py audit_orders`: compare every order with the ledger of the stock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from orders.audit import audit, counts


class Command(BaseCommand):
    """Asks each invariant, portion by portion. Safe while the shop is open."""

    help = "Compare orders with the ledger of the stock; ends with 1 when an invariant is broken."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take how far to look back."""
        parser.add_argument(
            "--days", type=float, metavar="N", help="only orders of the last N days (default: all)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask, and say what is broken."""
        days = options["days"]
        if days is not None and days <= 0:
            raise CommandError(f"--days is {days:g}: it must be above 0")
        try:
            found = audit(None if days is None else timedelta(days=days))
        except DatabaseError as error:
            raise CommandError(
                f"nothing was compared; `manage.py migrate` makes the tables: {error}"
            ) from error
        for invariant, broken in counts(found).items():
            self.stdout.write(f"{'✗' if broken else '✓'} {invariant.replace('_', ' ')}")
            for each in found:
                if each.invariant == invariant:
                    self.stdout.write(f"    {each.what}: expected {each.expected}, found {each.found}")
        if found:
            raise CommandError(f"{len(found)} rows break an invariant")
