"""`manage.py record_steps`: sessions of steps that the static lab plays, as static files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand

from orders.lab.management.commands.record_races import RECORDING
from orders.lab.pages.recording import record
from orders.lab.strategies import STRATEGIES

STEPS: Final = RECORDING.parent / "steps"
RECORDED: Final = (
    "lost_update",
    "negative_stock",
    "conditional_update",
    "version_cas",
    "row_lock",
    "redis_lock",
    "unsorted_locks",
    "unsorted_redis_locks",
    "ordered_locks",
)
"""Those that the puzzles are about, and what fixes them."""


class Command(BaseCommand):
    """Leads real buyers through every order of steps, and keeps what was seen."""

    help = "Record the steps of two buyers for the static lab, in every order."

    def add_arguments(self, parser: Any) -> None:
        """Which strategies, and where the recordings go."""
        parser.add_argument(
            "--strategy", action="append", choices=sorted(STRATEGIES), help="default: all of the puzzles"
        )
        parser.add_argument("--folder", type=Path, default=STEPS, help=f"default: {STEPS.name}")

    def handle(self, *args: Any, **options: Any) -> None:
        """Record one after the other."""
        options["folder"].mkdir(parents=True, exist_ok=True)
        for name in options["strategy"] or RECORDED:
            recording = record(name)
            text = json.dumps(recording.as_dict(), separators=(",", ":"), ensure_ascii=False)
            (options["folder"] / f"{name}.json").write_text(text + "\n")
            self.stdout.write(f"{name}: {len(recording.states)} states, {len(recording.presses)} presses")
