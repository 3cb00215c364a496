"""A pytest plugin that prints what tests cost, by folder: `pytest -p tests.support.costs …`.

Processor seconds of the tests and of the processes whose end they have seen, processes started, and seconds
asked of `time.sleep`. The costs of a server for the whole run are in the row of the test that ends it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import pytest

COLUMNS = ("tests", "seconds", "processor", "of children", "started", "forked", "slept")
COSTS: dict[str, Counter[str]] = {}
_now: list[Counter[str]] = [Counter()]
_sleep = time.sleep


def _noted(event: str, arguments: Any) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn"):
        _now[-1]["started"] += 1
    elif event == "os.fork":
        _now[-1]["forked"] += 1


def _sleeping(seconds: float) -> None:
    _now[-1]["slept"] += seconds  # type: ignore[assignment] # a Counter adds any numbers
    _sleep(seconds)


def _used(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count what one test costs, with its fixtures."""
    folder = str(PurePath(item.nodeid.split("::")[0]).parent)
    row = COSTS.setdefault(folder, Counter())
    _now[-1] = row
    begun, mine, children = time.perf_counter(), _used(resource.RUSAGE_SELF), _used(resource.RUSAGE_CHILDREN)
    result = yield
    row.update(
        {
            "tests": 1,
            "seconds": time.perf_counter() - begun,
            "processor": _used(resource.RUSAGE_SELF) - mine,
            "of children": _used(resource.RUSAGE_CHILDREN) - children,
        }
    )
    return result


def pytest_configure() -> None:
    """Listen from now on."""
    sys.addaudithook(_noted)
    time.sleep = _sleeping  # type: ignore[assignment]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's counts over."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["costs"] = {folder: dict(row) for folder, row in COSTS.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add a worker's counts."""
    for folder, row in getattr(node, "workeroutput", {}).get("costs", {}).items():
        COSTS.setdefault(folder, Counter()).update(row)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, the dearest folder first."""
    total = Counter[str]()
    for row in COSTS.values():
        total.update(row)
    rows = sorted(COSTS.items(), key=lambda each: -each[1]["processor"] - each[1]["of children"])
    terminalreporter.write_line("".join(f"{name:>12}" for name in COLUMNS) + "  folder")
    for folder, row in [*rows, ("all", total)]:
        terminalreporter.write_line("".join(f"{row[name]:12.1f}" for name in COLUMNS) + f"  {folder}")
