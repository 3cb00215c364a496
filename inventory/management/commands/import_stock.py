"""`manage.py import_stock FILE`: book deliveries from a CSV file, all or nothing, and once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from inventory.stock_import import ImportRefused, import_deliveries, read_deliveries


class Command(BaseCommand):
    """Reads sku, quantity, cause and, for new products, name and price."""

    help = "Book deliveries from a CSV file with the columns sku, quantity, cause [, name, price]."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the file and --dry-run."""
        parser.add_argument("file", type=Path, help="the CSV file, in UTF-8")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read, book, report."""
        try:
            text = options["file"].read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{options['file']} can't be read: {error}") from None
        try:
            report = import_deliveries(read_deliveries(text.splitlines()), dry_run=options["dry_run"])
        except ImportRefused as refused:
            raise CommandError("nothing was booked\n" + "\n".join(refused.errors)) from None
        would = "would be " if options["dry_run"] else ""
        self.stdout.write(
            f"{report.received} units in {report.booked} lines {would}booked, {report.created} products "
            f"{would}created, {report.repeated} lines were booked before"
        )
