"""What the page says of each strategy, in the visitor's language; what fixes which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from orders.lab.pages.limits import variants
from orders.lab.race.explain import explanation
from orders.lab.race.plan import Plan, choose
from orders.lab.strategies import STRATEGIES

BROKEN, DATABASE, REDIS, COORDINATION, PROCESS = (
    _("broken on purpose"),
    _("database"),
    _("Redis"),
    _("coordination services"),
    _("one process"),
)
GROUPS = (BROKEN, DATABASE, REDIS, COORDINATION, PROCESS)

_GROUP_OF = {
    "redis_lock": REDIS, "fenced_lock": REDIS, "redis_spin_lock": REDIS, "redis_script": REDIS,
    "redis_gate": REDIS, "segmented": REDIS, "segmented_locks": REDIS, "redlock": REDIS,
    "zookeeper_lock": COORDINATION, "etcd_lock": COORDINATION, "local_lock": PROCESS,
}  # fmt: skip
"""Where a sound strategy keeps its lock or its stock; the database, where it isn't named here."""


@dataclass
class Shown:
    """A line of the matrix: what may be raced, whether it is sound there, its idea, and what fixes it."""

    name: str
    strategy: str
    sound: bool
    idea: str
    fix: str = ""


def strategies() -> list[Shown]:
    """Everything that can be raced, each broken one before what fixes it."""
    known = {variant.name: variant for variant in choose("all", STRATEGIES, Plan())}
    found = [
        Shown(name, known[name].strategy, known[name].sound, _idea(known[name].strategy))
        for name in variants()
    ]
    fix = ""
    for shown in reversed(found):
        fix = shown.name if shown.sound else fix
        shown.fix = "" if shown.sound else fix
    return found


def grouped(shown: Sequence[Shown]) -> list[tuple[str, list[Shown]]]:
    """Return the strategies by what they rely on, in the order of `GROUPS`; an empty group is left out."""
    found = [(group, [one for one in shown if _group(one) is group]) for group in GROUPS]
    return [(str(group), members) for group, members in found if members]


def _group(shown: Shown) -> Any:
    return _GROUP_OF.get(shown.strategy, DATABASE) if shown.sound else BROKEN


def _idea(name: str) -> str:
    return explanation(STRATEGIES[name])["idea"]
