"""`manage.py prune_lock_events --older-than 90d`: the one way in which audit rows go."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections, router, transaction
from django.db.models import QuerySet

from locking.models import LockEvent
from locking.utils.databases import UtcNow

UNITS = {"d": "days", "h": "hours", "w": "weeks"}


def age(text: str) -> timedelta:
    """Return what `90d`, `12w` or `36h` means."""
    match = re.fullmatch(r"(\d{1,5})([dhw])", text)
    if not match or not int(match[1]):
        raise ArgumentTypeError(f"{text!r} is not an age: write 90d, 12w or 36h")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


class Command(BaseCommand):
    """Deletes lock events that are older than an age."""

    help = "Delete rows of the lock audit that are older than an age; nothing else deletes them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the age; there is no default: it is your decision."""
        parser.add_argument(
            "--older-than", type=age, required=True, metavar="90d", help="days, weeks or hours"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete, in one transaction that says what it is to PostgreSQL's trigger."""
        using = router.db_for_write(LockEvent)
        connection = connections[using]
        oldest = UtcNow() - options["older_than"]
        with transaction.atomic(using=using):
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL holdfast.prune = 'on'")
            # The model's own manager refuses to delete.
            gone, _ = QuerySet(LockEvent, using=using).filter(at__lt=oldest).delete()
        self.stdout.write(f"{gone} lock events deleted")
