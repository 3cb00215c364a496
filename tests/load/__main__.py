"""`python -m tests.load`: load and hurt the shop under each strategy, the lab under each sound lesson; audit.

Exit status 1 when anything was oversold, undersold, lost, duplicated or leaked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import django
from rich.console import Console

from benchmarks.checkout import growth
from benchmarks.checkout.testbed import open_servers
from benchmarks.circumstances import describe_machine
from tests.load import crowd, faults, figures, lesson
from tests.load.report import show, write
from tests.load.run import Plan, Subject, try_out
from tests.load.servers import Servers
from tests.load.shop import manage, serving

DEFAULT_FAULTS = "kill,flush,kill"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, report, and say by the exit status whether all was exact."""
    options = _parse(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=190)
    begun = time.monotonic()
    with open_servers() as servers:
        os.environ.update(servers.environment)
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
        django.setup()
        if options.ui:
            return _open_page(servers)
        results = _measure(options, servers, console)
    results["minutes"] = round((time.monotonic() - begun) / 60, 2)
    show(console, results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.html:
        write(options.html, results)
        console.print(f"report: {options.html}")
    return 0 if results["exact"] else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument(
        "--strategy", nargs="+", default=["all"], metavar="NAME", help="names, or all (default)"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="how long buyers come (default 6)")
    parser.add_argument("--rate", type=float, default=60.0, help="buyers per second (default 60)")
    parser.add_argument(
        "--faults",
        default=DEFAULT_FAULTS,
        help=f"in mid-run, of {', '.join(faults.FAULTS)}, or none (default {DEFAULT_FAULTS})",
    )
    parser.add_argument("--locust", type=float, default=3.0, help="seconds of locust's users (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of baskets and victims (default 1)")
    parser.add_argument("--no-growth", action="store_true", help="leave out the cost by buyers and products")
    parser.add_argument("--no-lessons", action="store_true", help="leave out the lab's own checkout")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report to FILE")
    parser.add_argument("--ui", action="store_true", help="serve the shop and open locust's web page instead")
    options = parser.parse_args(arguments)
    try:
        options.plan = _plan(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def _plan(options: argparse.Namespace) -> Plan:
    for name in ("seconds", "rate"):
        if not 0 < getattr(options, name) <= 100_000:
            raise ValueError(f"--{name} {getattr(options, name):g} must be above 0, and at most 100000")
    return Plan(
        options.rate, options.seconds, faults.parse(options.faults), locust=options.locust, seed=options.seed
    )


def subjects(names: Sequence[str]) -> list[Subject]:
    """Return the strategies of these names.

    Raises:
        SystemExit: a name is none that is set up.
    """
    from orders.selling import strategies

    known = strategies.names()
    wanted = known if list(names) == ["all"] else names
    for name in wanted:
        if name not in known:
            raise SystemExit(f"holdfast: --strategy {name!r} is not set up; choose of {', '.join(known)}")
    return [Subject(name) for name in wanted]


def _measure(options: argparse.Namespace, servers: Servers, console: Console) -> dict[str, Any]:
    chosen = subjects(options.strategy)
    with console.status("starting") as status:
        runs = []
        for subject in chosen:
            status.update(subject.name)
            runs.append(_run(subject, options.plan, servers))
            console.print(f"{subject.name}: {'exact' if runs[-1]['verdict']['exact'] else 'WRONG'}")
        lessons = [] if options.no_lessons else _try_lessons(servers, status.update)
        audited = _audit(servers)
        grown = []
        if not options.no_growth:
            names = [subject.name for subject in chosen]
            grown = growth.measure(servers, 0.25, names, status.update)
    return {
        "circumstances": describe_machine(),
        "parameters": {"rate": options.rate, "seconds": options.seconds, "seed": options.seed},
        "runs": runs,
        "lessons": lessons,
        "growth": grown,
        "audit_orders": audited,
        "exact": all(run["verdict"]["exact"] for run in runs)
        and not any(run["details"] for run in lessons)
        and audited.get("exit", 0) == 0,
    }


def _run(subject: Subject, plan: Plan, servers: Servers) -> dict[str, Any]:
    run = try_out(subject, plan, servers, {})
    visits = run.pop("visits")
    return run | figures.summary(visits, plan.seconds) | {"lines": figures.over_time(visits, plan.seconds)}


def _try_lessons(servers: Servers, say: Callable[[str], object]) -> list[dict[str, Any]]:
    """Serve the shop once, and have buyers at the lab's checkout name each lesson in turn."""
    found = []
    with serving(servers.environment | lesson.ENVIRONMENT, workers=2, threads=8) as shop:
        for name in lesson.names():
            say(f"lesson {name}")
            found.append(lesson.try_out(name, shop))
    return found


def _audit(servers: Servers) -> dict[str, Any]:
    """Ask the shop's own auditor, too."""
    done = manage(servers.environment, "audit_orders")
    return {"exit": done.returncode, "said": done.stdout.strip()[-2000:] or done.stderr.strip()[-2000:]}


def _open_page(servers: Servers) -> int:
    manage(servers.environment, "seed_demo")
    with serving(servers.environment) as shop:
        print(f"The shop is at {shop.address}; locust's page at http://127.0.0.1:8089/ (Ctrl-C ends both).")
        return subprocess.call(crowd.command(shop, "--web-host", "127.0.0.1"), env=crowd.environment([]))


if __name__ == "__main__":
    raise SystemExit(main())
