"""Django's `flush`, which tests empty a database by: MySQL and SQLite delete the rows of each table."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush
from django.db import connections, transaction

from inventory.triggers import allow_changes, are_installed


class Command(flush.Command):
    """Empty the database, the ledger among the rest."""

    def handle(self, **options: Any) -> None:
        """Let the ledger's rows go for as long as this runs."""
        using = options["database"]
        if connections[using].vendor == "postgresql" or not are_installed(using):
            super().handle(**options)
            return
        with transaction.atomic(using=using), allow_changes(using):
            super().handle(**options)
