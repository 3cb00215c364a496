"""`manage.py relay_events`: deliver the events of orders, where no Celery worker does it."""

from __future__ import annotations

from time import sleep
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import InterfaceError, InternalError, OperationalError, connection

from orders.events.relay import relay_all


class Command(BaseCommand):
    """Delivers what is due, once or for as long as it runs."""

    help = "Deliver the events of orders that are due to the receivers of orders.events.signals."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take --every."""
        parser.add_argument(
            "--every", type=float, metavar="SECONDS", help="go on, and look again after so many seconds"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Deliver, and report or look again."""
        every = options["every"]
        if every is not None and not 0 < every <= 3600:
            raise CommandError(f"--every {every:g}: must be more than 0 and at most 3600 seconds")
        self.stdout.write(f"{relay_all()} events relayed")
        while every is not None:
            sleep(every)
            self._relay_more()

    def _relay_more(self) -> None:
        """Relay more events; survive a database that restarts or fails over.

        Events claimed meanwhile are delivered when their claim ends.
        """
        try:
            relayed = relay_all()
        except (OperationalError, InterfaceError, InternalError) as error:
            connection.close()
            self.stderr.write(f"nothing relayed, tried again at the next look: {error}")
            return
        if relayed:
            self.stdout.write(f"{relayed} events relayed")
