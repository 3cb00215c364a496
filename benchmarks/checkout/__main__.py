"""`python -m benchmarks.checkout`: the sound strategies through HTTP, beside views that do less."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
from rich.console import Console

from benchmarks.checkout import growth, quick, rounds
from benchmarks.checkout.growth_data import summarize
from benchmarks.checkout.plots import draw
from benchmarks.checkout.tables import show
from benchmarks.checkout.targets import FAULTS, judge
from benchmarks.checkout.testbed import open_servers
from benchmarks.circumstances import ROOT, describe_machine
from benchmarks.console import open_console
from tests.load.servers import Servers

PARTS = ("rounds", "growth")
DRAW = (sys.executable, str(ROOT / "docs" / "growth_plots.py"))
"""Draws the plots of the data in a folder; without matplotlib, readable in light and in dark."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write what was asked for; 1 when the totals of any run weren't exact."""
    options = _parse(arguments)
    console = open_console()
    begun = time.monotonic()
    with open_servers() as servers:
        results = _measure_targets(servers, console) if options.quick else _measure(servers, console, options)
    results["minutes"] = (time.monotonic() - begun) / 60
    targets = quick.judge(results) if options.quick else judge(results)
    results["targets"] = [{**asdict(target), "verdict": target.verdict} for target in targets]
    results["faults"] = _faults(results)
    if "growth" in results:
        results["model"] = summarize(results["growth"], results["circumstances"])
    show(console, results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plots:
        _draw(results, options.plots)
    return 1 if results["faults"] else 0


def _measure_targets(servers: Servers, console: Console) -> dict[str, Any]:
    circumstances = describe_machine()
    return {"circumstances": circumstances, **quick.measure(servers, partial(console.print, highlight=False))}


def _measure(servers: Servers, console: Console, options: argparse.Namespace) -> dict[str, Any]:
    # Which strategies there are, Django says; the database is the one that was just made.
    os.environ.update(servers.environment)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    results: dict[str, Any] = {"circumstances": describe_machine()}
    with console.status("starting") as status:
        if "rounds" in options.only:
            results["rounds"] = rounds.measure(servers, rounds.FULL, options.strategy, status.update)
    if "growth" in options.only:
        results |= _grow(servers, partial(console.print, highlight=False), options)
    return results


def _grow(servers: Servers, say: Callable[[str], None], options: argparse.Namespace) -> dict[str, Any]:
    sizes = {axis: growth.SIZES[axis][:: options.every] for axis in options.axis}
    subject = growth.Growth(servers, options.seconds, options.strategy or growth.DRAWN, say, sizes)
    records = subject.measure(options.rounds, options.minutes)
    for case in growth.missing(records, sizes):
        say(f"not measured, because {options.minutes:g} minutes were over: {case}")
    return {"growth": records}


def _draw(results: dict[str, Any], folder: Path) -> None:
    """Write the plots; those of growth are drawn from the data, which is written beside them."""
    draw(results, folder)
    if "model" in results:
        (folder / "growth.json").write_text(json.dumps(results["model"], indent=1, ensure_ascii=False) + "\n")
        subprocess.run([*DRAW, str(folder)], check=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkout", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the targets, in under four minutes")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="measure these parts")
    parser.add_argument(
        "--axis", choices=growth.AXES, nargs="+", default=growth.AXES, help="what grows (default: all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often growth is measured at most (default 5)"
    )
    parser.add_argument(
        "--minutes", type=float, default=11.0, help="after which growth begins no further run (default 11)"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run of growth (default 1)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="growth: every Nth size only")
    parser.add_argument(
        "--strategy", nargs="+", metavar="NAME", help="these strategies (default: every sound one)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures to FILE")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the plots into DIR")
    options = parser.parse_args(arguments)
    if options.quick and (options.plots or options.strategy):
        parser.error("--quick measures the targets only; leave it out to choose strategies or draw plots")
    if options.plots and "rounds" in options.only and not find_spec("matplotlib"):
        parser.error("--plots needs matplotlib: .venv/bin/pip install -r requirements-bench.txt")
    return options


def _faults(results: dict[str, Any]) -> list[str]:
    """Return a sentence for each run whose totals don't agree though its subject is exact."""
    records = [
        *results.get("quick", []),
        *results.get("rounds", {}).get("records", []),
        *results.get("growth", []),
    ]
    return [
        f"{record['peer']}, {record['case']}: {name} {record[name]}"
        for record in records
        for name in FAULTS
        if record["exact"] and record[name]
    ]


if __name__ == "__main__":
    raise SystemExit(main())
