"""Where a run writes what it says, and hears what its visitor says."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from orders.lab.models import LabEvent, LabRun


class Journal:
    """The events of one run, as its own process sees them."""

    def __init__(self, run: LabRun) -> None:
        self.run = run
        self._heard = 0

    def tell(self, kind: str, **facts: Any) -> None:
        """Write an event for the page."""
        LabEvent.objects.create(run=self.run, sender=LabEvent.Sender.RUN, data={"type": kind, **facts})

    def hear(self) -> list[str]:
        """Return the visitor's commands since the last call, oldest first."""
        news = LabEvent.objects.filter(run=self.run, sender=LabEvent.Sender.VISITOR, pk__gt=self._heard)
        said = list(news.values_list("pk", "data"))
        self._heard = said[-1][0] if said else self._heard
        return [data["say"] for _, data in said]

    @transaction.atomic
    def end(self, why: str, problem: str = "") -> None:
        """Write the last event."""
        self.tell("ended", why=why, problem=problem)
        LabRun.objects.filter(pk=self.run.pk).update(ended_at=Now())
