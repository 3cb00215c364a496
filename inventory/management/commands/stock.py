"""`manage.py stock audit|reconcile|expire|import|archive`."""

from __future__ import annotations

import csv
from argparse import ArgumentParser
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils import timezone

from inventory.api import DEFAULT_LOCATION, Stock
from inventory.exceptions import InventoryError
from inventory.lines import MAX_LINES, check_quantity, check_sku

MONTH: Final = timedelta(days=31)


class Command(BaseCommand):
    """Look after the stock of an alias."""

    help = "Look after stock: audit, reconcile, expire, import, archive."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare a subcommand each."""
        parser.add_argument("--alias", default="default", help="of INVENTORY")
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        verb = verbs.add_parser(
            "audit", help="compare balances with their movements; exit status 1 if they differ"
        )
        verb.add_argument(
            "--all", action="store_true", help="every level, not only those that moved since the last"
        )
        verbs.add_parser("reconcile", help="set balances that differ to what the ledger says")
        verbs.add_parser("expire", help="end reservations whose time has run out")
        verb = verbs.add_parser("import", help="receive the units of a CSV file: sku,quantity[,location]")
        verb.add_argument("file", type=Path)
        verb.add_argument("--cause", help="names the delivery; the file's name, if not given")
        verb = verbs.add_parser("archive", help="replace old movements by opening balances")
        verb.add_argument("--months", type=int, default=24, help="keep the movements of so many (24)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run one."""
        stock = Stock(options["alias"])
        try:
            getattr(self, f"_{options['verb']}")(stock, options)
        except InventoryError as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(
                f"the database refuses; `manage.py migrate` makes the tables: {error}"
            ) from error

    def _audit(self, stock: Stock, options: dict[str, Any]) -> None:
        from inventory.audit import audit

        report = audit(stock.using, everything=options["all"])
        for difference in report.differences:
            self.stdout.write(str(difference))
        if report.differences:
            raise CommandError(
                f"{len(report.differences)} differences; `manage.py stock reconcile` believes the ledger"
            )
        self.stdout.write(f"{report.checked} levels are what their movements say")

    def _reconcile(self, stock: Stock, options: dict[str, Any]) -> None:
        from inventory.audit import reconcile

        to_count = []
        for done in reconcile(stock.using):
            for difference in done.differences:
                self.stdout.write(f"{'corrected' if done.believed else 'left'}: {difference}")
            if not done.believed:
                to_count.append(f"{done.differences[0].sku} at {done.differences[0].location}")
        if to_count:
            raise CommandError(f"count these, their movements can't be right: {', '.join(to_count)}")

    def _expire(self, stock: Stock, options: dict[str, Any]) -> None:
        from inventory.reservations import expire_all

        self.stdout.write(f"{expire_all(stock.using)} reservations expired")

    def _import(self, stock: Stock, options: dict[str, Any]) -> None:
        path: Path = options["file"]
        cause = options["cause"] or path.name
        new = 0
        for location, units in sorted(read_deliveries(path).items()):
            lines = sorted(units.items())
            for begin in range(0, len(lines), MAX_LINES):
                part = f"{cause}:{location}:{begin // MAX_LINES}"
                posted = stock.receive(lines[begin : begin + MAX_LINES], cause=part, location=location)
                new += 0 if posted.repeated else sum(line.quantity for line in posted.lines)
        self.stdout.write(f"{new} units received")

    def _archive(self, stock: Stock, options: dict[str, Any]) -> None:
        from inventory.retention import archive

        if options["months"] < 1:
            raise CommandError(f"--months is at least 1, not {options['months']}")
        before = timezone.now() - options["months"] * MONTH  # noqa: TID251 a day more or less is no matter
        gone = sum(count for _, count in archive(before, stock.using))
        self.stdout.write(f"{gone} movements replaced by opening balances")


def read_deliveries(path: Path) -> dict[str, dict[str, int]]:
    """Return units by location and SKU, of a file that is right.

    Raises:
        CommandError: names the line, the value and what it should be.
    """
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            if not {"sku", "quantity"} <= set(rows.fieldnames or ()):
                raise CommandError(f"{path}: the first line is sku,quantity or sku,quantity,location")
            for row in rows:
                sku = check_sku((row["sku"] or "").strip())
                quantity = (row["quantity"] or "").strip()
                units = check_quantity(sku, int(quantity) if quantity.isdecimal() else quantity)
                found[(row.get("location") or "").strip() or DEFAULT_LOCATION][sku] += units
    except InventoryError as error:
        raise CommandError(f"{path}, line {rows.line_num}: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path}: {error}") from error
    return found
