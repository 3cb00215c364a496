"""No test sleeps in order to be right: each sleep has its reason beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests import ROOT


def sleeps(source: str) -> Iterator[int]:
    """Yield the lines of calls of `time.sleep` and `asyncio.sleep`, but for `sleep(0)`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("time" | "asyncio"), "sleep"), args=[seconds]):
                if ast.unparse(seconds) != "0":
                    yield node.lineno


def test_each_sleep_says_what_it_is_for() -> None:
    """The work under a lock, room for an intruder, a fault itself, or asking again."""
    silent = []
    for path in (file for folder in ("tests", "locking/testing") for file in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        if "sleep(" not in source:
            continue
        lines = source.splitlines()
        silent += [f"{path.relative_to(ROOT)}:{no}" for no in sleeps(source) if "  # " not in lines[no - 1]]
    assert not silent


def test_a_sleep_without_a_reason_is_found() -> None:
    """Wherever it stands in a line."""
    assert list(
        sleeps("import time\nwhile not x(): time.sleep(0.1)\nasyncio.sleep(0)\nclock.sleep(3)\n")
    ) == [2]
