"""A run of the lab and what it said: kept for the last runs, so that a link shows them again."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

KEPT = 50
"""Runs whose events are kept."""

LONGEST = timedelta(minutes=20)
"""No run goes on for so long: one that has told no end died with its server."""


def new_id() -> str:
    """A name for a run that nobody guesses."""
    return secrets.token_hex(6)


class LabRunQuerySet(models.QuerySet["LabRun"]):
    """Runs."""

    def aged(self) -> Any:
        """Give each its `age` by the database's clock, which also dated it."""
        age = models.ExpressionWrapper(Now() - models.F("started_at"), models.DurationField())
        return self.annotate(age=age)


class LabRun(models.Model):
    """A race, or a session of steps."""

    class Kind(models.TextChoices):
        """What is run."""

        RACE = "race", _("race")
        STEPS = "steps", _("steps")

    id = models.CharField(primary_key=True, max_length=12, default=new_id, editable=False)
    kind = models.CharField(_("kind"), max_length=5, choices=Kind.choices)
    parameters = models.JSONField(_("parameters"))
    started_at = models.DateTimeField(_("started"), db_default=Now(), editable=False, db_index=True)
    ended_at = models.DateTimeField(_("ended"), null=True)

    objects = LabRunQuerySet.as_manager()

    class Meta:
        app_label = "orders"
        ordering = ("-started_at", "-pk")
        verbose_name = _("run of the lab")
        verbose_name_plural = _("runs of the lab")

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class LabEvent(models.Model):
    """Something that a run said to the page, or that a visitor said to the run."""

    class Sender(models.TextChoices):
        """Who said it."""

        RUN = "run", _("run")
        VISITOR = "visitor", _("visitor")

    run = models.ForeignKey(LabRun, on_delete=models.CASCADE, related_name="events", verbose_name=_("run"))
    sender = models.CharField(_("sender"), max_length=7, choices=Sender.choices)
    data = models.JSONField(_("data"))

    class Meta:
        app_label = "orders"
        ordering = ("pk",)
        verbose_name = _("event of a run")
        verbose_name_plural = _("events of a run")

    def __str__(self) -> str:
        return f"{self.sender} {self.data}"


def forget_old_runs(keep: int = KEPT) -> None:
    """Delete all runs but the newest `keep` and those that go on, with their events."""
    newest = LabRun.objects.order_by("-started_at").values("pk")[:keep]
    old = LabRun.objects.exclude(pk__in=list(newest.values_list("pk", flat=True)))
    old.exclude(ended_at=None, started_at__gt=Now() - LONGEST).delete()
