"""`manage.py oversell`: race real buyers for a scarce product and show who oversells."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import Error as DatabaseError

from inventory.racing import command as racing
from locking import BackendUnavailable
from orders.lab.pages.search import report, search
from orders.lab.pages.terminal import walk
from orders.lab.race.engine import race
from orders.lab.race.interruption import Interrupted, interruptible
from orders.lab.race.lab_products import LabError
from orders.lab.race.plan import Plan, PlanError, Variant, choose, parse_gap, present
from orders.lab.race.report import now, summary, write_report
from orders.lab.race.result import Result
from orders.lab.race.table import Bars, make_console, print_results
from orders.lab.strategies import STRATEGIES

BAD_INPUT = 2

HELP = """
Let many buyers in several processes buy one scarce product at the same moment, once for each strategy, and
compare what was sold with what there was. Each buyer places a real order over a connection of its own.
"""

EPILOG = """
Exit status: 0 every sound strategy was exact and every broken one was shown to be broken; 1 one was not;
2 the command line can't be raced; 130 stopped by Ctrl-C, with nothing left behind.
"""


class Command(racing.Command):
    """Race the strategies against one another's promises; with `--path`, a function of the reader's own."""

    help = HELP.strip()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.epilog = EPILOG.strip()
        self.add_path_arguments(parser)
        parser.add_argument(
            "--strategy", default="all", metavar="NAMES", help="all, or names with commas between"
        )
        parser.add_argument(
            "--buyers", type=_whole, default=40, metavar="N", help="people who want one piece each"
        )
        parser.add_argument("--stock", type=_whole, default=10, metavar="N", help="pieces on hand")
        parser.add_argument(
            "--gap", default="20ms", metavar="TIME", help="rest between deciding and writing: 20ms, 0.5s"
        )
        parser.add_argument(
            "--processes", type=_whole, default=4, metavar="N", help="processes the buyers come from"
        )
        parser.add_argument(
            "--step", action="store_true", help="lead two buyers through one strategy by the keys a and b"
        )
        parser.add_argument(
            "--search",
            nargs="?",
            const="all",
            metavar="NAMES",
            help="lead two buyers through all schedules of at most two switches, print the shortest bad one; "
            "without NAMES through all strategies",
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
        parser.add_argument(
            "--report", type=Path, metavar="FILE", help="write one HTML page with plots there"
        )
        parser.add_argument(
            "--expect-safe",
            action="store_true",
            help="for scripts: the same exit status, and a selection without a sound strategy is refused",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Race, print, write, judge; or go step by step; or race what `--path` names."""
        if options["path"]:
            self.race_path(options)
            return
        if options["step"]:
            _step(options)
            return
        if options["search"]:
            _search(options, self.stdout)
            return
        plan, variants, absent = _planned(options)
        for path in (options["json"], options["report"]):
            _require_writable(path)
        colors = {"no_color": options["no_color"], "force_color": options["force_color"]}
        started = now()
        results = _raced(
            plan, variants, Bars(make_console(stderr=True, **colors), plan), bool(options["report"])
        )
        document = summary(plan, results, started, absent)
        _write(options, document, results)
        # Last, for its reader may have seen enough: `… | head` must not cost the files.
        print_results(make_console(file=self.stdout, **colors), plan, results, absent)
        _judge(results)


def _step(options: dict[str, Any]) -> None:
    name = options["strategy"]
    if name not in STRATEGIES:
        raise CommandError(
            f"--step needs one strategy, not {name!r}: add --strategy lost_update, or another of "
            f"{', '.join(STRATEGIES)}",
            returncode=BAD_INPUT,
        )
    with _errors_reported(), interruptible():
        walk(name, make_console(no_color=options["no_color"], force_color=options["force_color"]), sys.stdin)


def _search(options: dict[str, Any], output: Any) -> None:
    try:
        chosen = choose(options["search"], STRATEGIES, Plan())
        variants, _ = present(options["search"], chosen, STRATEGIES)
    except PlanError as error:
        raise CommandError(str(error), returncode=BAD_INPUT) from None
    console = make_console(file=output, no_color=options["no_color"], force_color=options["force_color"])
    # Two buyers of one process: what holds in processes only is not searched.
    names = list(dict.fromkeys(variant.strategy for variant in variants if "@" not in variant.name))
    with _errors_reported(), interruptible():
        failed = [name for name in names if not report(name, search(name), console)]
    if failed:
        raise CommandError(f"{len(failed)} of {len(names)} did not do as labelled: {', '.join(failed)}")


def _planned(options: dict[str, Any]) -> tuple[Plan, tuple[Variant, ...], dict[str, str]]:
    """Read the command line and ask who is there, before anything is started."""
    try:
        plan = Plan(options["buyers"], options["stock"], parse_gap(options["gap"]), options["processes"])
        variants = choose(options["strategy"], STRATEGIES, plan)
        variants, absent = present(options["strategy"], variants, STRATEGIES)
    except PlanError as error:
        raise CommandError(str(error), returncode=BAD_INPUT) from None
    if options["expect_safe"] and not any(variant.sound for variant in variants):
        raise CommandError(
            f"--expect-safe with --strategy {options['strategy']}: none of these is sound, so nothing can "
            "be safe; add a sound one, such as row_lock, or leave --expect-safe out",
            returncode=BAD_INPUT,
        )
    return plan, variants, absent


def _raced(plan: Plan, variants: Sequence[Variant], bars: Bars, sample: bool) -> list[Result]:
    with _errors_reported(), interruptible(), bars:
        return race(plan, variants, bars, sample=sample)


@contextmanager
def _errors_reported() -> Iterator[None]:
    """Say in one line why it could not be done, and which exit status tells so."""
    try:
        yield
    except Interrupted as interruption:
        raise CommandError(
            f"stopped by {interruption}: buyers ended, products cleared",
            returncode=128 + interruption.signal,
        ) from None
    except LabError as error:
        raise CommandError(str(error), returncode=BAD_INPUT) from None
    except BackendUnavailable as error:
        raise CommandError(str(error), returncode=BAD_INPUT) from error
    except DatabaseError as error:
        raise CommandError(
            f"the database refused: {' '.join(str(error).split())}; {_way_out(error)}"
        ) from error


def _way_out(error: DatabaseError) -> str:
    if getattr(error.__cause__, "sqlstate", None) == "42P01":
        return "its tables are missing: run `python manage.py migrate` first"
    return "see that it runs and that DATABASE_URL, if set, is right"


def _write(options: dict[str, Any], document: dict[str, Any], results: Sequence[Result]) -> None:
    try:
        if options["json"]:
            options["json"].write_text(json.dumps(document, indent=2) + "\n")
        if options["report"]:
            write_report(options["report"], document, results)
    except OSError as error:
        raise CommandError(f"the figures could not be written: {error}; name another file") from error


def _judge(results: Sequence[Result]) -> None:
    failed = [f"{result.name}: {result.verdict}" for result in results if not result.kept]
    if failed:
        raise CommandError(f"{len(failed)} of {len(results)} did not do as labelled. " + " | ".join(failed))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number; write one such as 40") from None


def _require_writable(path: Path | None) -> None:
    """Refuse before the race what would fail after it."""
    if path is None:
        return
    if path.is_dir():
        raise CommandError(f"{path} is a folder: name a file in it", returncode=BAD_INPUT)
    if not path.parent.is_dir():
        raise CommandError(f"{path}: there is no folder {path.parent}; create it first", returncode=BAD_INPUT)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise CommandError(
            f"{path} can't be written: choose another place or change its permissions", returncode=BAD_INPUT
        )
