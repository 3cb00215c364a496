"""What may be asked of the lab: forms, because visitors type it, with limits that keep a public page safe."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from orders.lab.race.plan import Plan, choose
from orders.lab.strategies import STRATEGIES

RACE_SECONDS = 90.0
"""A race of one strategy is called off after this time."""

ALL_SECONDS = 420.0
"""A race of all of them."""

STEP_SECONDS = 900.0
"""A session of steps ends after this time, …"""

IDLE_SECONDS = 120.0
"""… or after so long without a key."""

STEP_SESSIONS = 3
"""Sessions of steps at a time."""

PATIENCE = 8.0
"""Seconds that a buyer of the lab goes on trying while the shop is busy."""

PAUSE = 1.5
"""Seconds for which the process of a holder that stands still is stopped, …"""

PAUSED_LEASE = 0.5
"""… and the lease of its lock."""

TRIES = 3
"""Races that a broken strategy gets to show its fault."""

FAULTS = (
    ("none", _("nothing goes wrong")),
    ("lease", _("the lease is shorter than the gap")),
    ("pause", _("a holder stands still")),
    ("redis", _("Redis is killed")),
)


def sellers() -> list[str]:
    """Return the names of the strategies that the settings can run."""
    return [name for name, strategy in STRATEGIES.items() if strategy.unconfigured() is None]


def variants() -> list[str]:
    """Return the names of the variants that the settings allow, each broken one before its fix."""
    names: dict[str, list[str]] = {name: [] for name in STRATEGIES}
    for variant in choose("all", STRATEGIES, Plan()):
        names[variant.strategy].append(variant.name)
    return [name for strategy in sellers() for name in sorted(names[strategy], key=len)]


class RaceForm(forms.Form):
    """A race as a visitor asks for it."""

    buyers = forms.IntegerField(label=_("Buyers"), min_value=2, max_value=60, initial=40)
    stock = forms.IntegerField(label=_("Stock"), min_value=1, max_value=100, initial=10)
    gap = forms.IntegerField(label=_("Gap, ms"), min_value=0, max_value=300, initial=20)
    processes = forms.IntegerField(label=_("Processes"), min_value=1, max_value=4, initial=2)
    strategy = forms.ChoiceField(label=_("Strategy"))
    fault = forms.ChoiceField(label=_("Break it"), choices=FAULTS, initial="none", required=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        names = [(name, name) for name in variants()]
        self.fields["strategy"] = forms.ChoiceField(
            label=_("Strategy"), choices=[*names, ("all", _("all"))], initial="lost_update"
        )

    def clean(self) -> dict[str, Any]:
        """Refuse a process without a buyer, and one process for a lock that needs two."""
        cleaned = super().clean() or {}
        buyers, processes = cleaned.get("buyers"), cleaned.get("processes")
        if buyers and processes and processes > buyers:
            self.add_error("processes", _("There are more processes than buyers."))
        if str(cleaned.get("strategy")).endswith("@processes") and processes == 1:
            self.add_error("processes", _("This one is raced over two or more processes."))
        _require_there(self)
        cleaned["fault"] = cleaned.get("fault") or "none"
        return cleaned


class StepsForm(forms.Form):
    """A session of steps as a visitor asks for it."""

    strategy = forms.ChoiceField(label=_("Strategy"), choices=lambda: [(name, name) for name in sellers()])

    def clean(self) -> dict[str, Any]:
        """Refuse a strategy whose server is down."""
        _require_there(self)
        return self.cleaned_data


def _require_there(form: forms.Form) -> None:
    name = str(form.cleaned_data.get("strategy")).partition("@")[0]
    reason = STRATEGIES[name].unavailable() if name in STRATEGIES else None
    if reason:
        form.add_error("strategy", reason)


class CommandForm(forms.Form):
    """What a visitor says to a run."""

    say = forms.ChoiceField(choices=[(word, word) for word in ("A", "B", "stop")])


def problems_of(form: forms.Form) -> list[str]:
    """Return a form's errors, one sentence each, with field and value."""
    return [
        gettext("%(field)s %(value)s: %(reason)s")
        % {
            "field": form.fields[name].label,
            "value": str(form.data.get(name, ""))[:40],
            "reason": " ".join(map(str, errors)),
        }
        for name, errors in form.errors.items()
    ]
