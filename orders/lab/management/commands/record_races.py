"""`manage.py record_races`: the races that the lab shows before a visitor has run one, as a static file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from orders.lab.pages import limits
from orders.lab.pages.event_reporter import result_data
from orders.lab.race.engine import race
from orders.lab.race.plan import Plan, Variant, choose, present
from orders.lab.race.result import Result
from orders.lab.strategies import STRATEGIES

RECORDING = Path(__file__).parents[2] / "static" / "lab" / "recorded.json"
IN_FULL = ("lost_update", "row_lock")
"""The pair that is played; of the others only the figures are kept."""

DRAWN = ("buyers", "stock")


class Command(BaseCommand):
    """Races all strategies once, with the lab's own defaults, and keeps what the page draws."""

    help = "Race every strategy once and write the recording that the lab and the start page open with."

    def add_arguments(self, parser: Any) -> None:
        """Which strategies, and where the recording goes."""
        parser.add_argument("--strategy", default="all", help="all, or names with commas between them")
        parser.add_argument("--output", type=Path, default=RECORDING, help=f"default: {RECORDING.name}")

    def handle(self, *args: Any, **options: Any) -> None:
        """Race, and write the file."""
        plan = Plan(40, 10, 0.02, 2, limits.TRIES, limits.PATIENCE)
        variants, absent = present(
            options["strategy"], choose(options["strategy"], STRATEGIES, plan), STRATEGIES
        )
        results = race(plan, variants, Progress(self), sample=True)
        options["output"].write_text(json.dumps(recording(plan, results), separators=(",", ":")) + "\n")
        for name, reason in absent.items():
            self.stdout.write(f"{name} is not in the recording: {reason}")


def recording(plan: Plan, results: list[Result]) -> dict[str, Any]:
    """Return the parameters and the races, in the format of the lab's own events."""
    parameters = {
        "buyers": plan.buyers,
        "stock": plan.stock,
        "gap": round(plan.gap * 1000),
        "processes": plan.processes,
        "fault": "none",
    }
    return {"parameters": parameters, "races": [_kept(result_data(result)) for result in results]}


def _kept(data: dict[str, Any]) -> dict[str, Any]:
    return data if data["name"] in IN_FULL else {name: data[name] for name in data if name not in DRAWN}


class Progress:
    """Prints a line per race."""

    def __init__(self, command: BaseCommand) -> None:
        self._command = command

    def round_(self, variant: Variant, attempt: int) -> None:
        """A race begins."""

    def answered(self, variant: Variant, buyers: int) -> None:
        """More buyers have their answer."""

    def result(self, variant: Variant, result: Result) -> None:
        """A race has ended."""
        self._command.stdout.write(f"{variant.name}: {result.verdict}")
