"""A pytest plugin that runs tests on changed lines of `locking`, see `test_promise_mutants.py`.

Tests are collected once: for each mutant that comes by standard input the process is forked, one line is
changed in the child, and the mutant's tests are run there. The functions of the module get the code of the
changed one, wherever they were imported or wrapped meanwhile.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import pytest

from tests.support.processes import until

VERDICT: Final = "verdict of a mutant: "
PATIENCE: Final = 5.0
"""Seconds that a test waits at most for what takes milliseconds."""


def change(name: str, old: str, new: str) -> None:
    """Replace a part that the module has once."""
    path = import_module(name).__file__
    assert path is not None
    source = Path(path).read_text()
    assert source.count(old) == 1, f"{path} has {source.count(old)} times: {old}"
    mutants = dict(_pairs(compile(source, path, "exec"), compile(source.replace(old, new), path, "exec")))
    gc.unfreeze()  # tests/support/garbage.py has frozen what was there after the collection
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    changed = [each for each in functions if each.__code__ in mutants]
    assert changed, f"{path}: no function has the line"
    for each in changed:
        each.__code__ = mutants[each.__code__]


def _pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the codes that differ, each with its successor."""
    inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (before, after)]
    for one, other in zip(*inner, strict=True):
        if one != other:
            yield one, other
            yield from _pairs(one, other)


def pytest_configure() -> None:
    """Use the database of the run that has started this one."""
    from django.conf import settings

    default = settings.DATABASES["default"]
    default["TEST"] = {**default.get("TEST", {}), "NAME": default["NAME"]}


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Read a mutant per line until the end, and write a verdict for each."""
    os.dup2(1, 2)  # what tests log is read along with the verdicts: a pipe that is not read would fill
    for line in sys.stdin:
        mutant = json.loads(line)
        reads, writes = os.pipe()
        if os.fork() == 0:
            try:
                verdict = _judged(session, mutant)
            except BaseException:
                verdict = {"error": [traceback.format_exc()]}
            os.write(writes, json.dumps(verdict).encode())
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads) as answer:
            print("\n" + VERDICT + answer.read(), flush=True)
        os.wait()
    return True


def _judged(session: pytest.Session, mutant: dict[str, str]) -> dict[str, list[str]]:
    """Run the mutant's tests until one fails; return the addresses of what passed and what failed."""
    change(mutant["module"], mutant["old"], mutant["new"])
    heard = _Heard()
    session.config.pluginmanager.register(heard)
    names = mutant["names"].split(" and ")
    of_them = (item for item in session.items if item.nodeid.startswith(mutant["tests"]))
    tests = [item for item in of_them if all(name in item.nodeid for name in names)]
    assert tests, f"no test of {mutant['tests']} has {mutant['names']!r} in its name"
    until.__kwdefaults__ = {**(until.__kwdefaults__ or {}), "within": PATIENCE}  # it is waited for in vain
    for item in tests:
        if isinstance(item, pytest.Function) and hasattr(item.module, "PATIENCE"):
            item.module.PATIENCE = PATIENCE
    for item, following in zip(tests, [*tests[1:], None], strict=True):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if heard.verdict["failed"]:
            break
    return heard.verdict


class _Heard:
    """What became of the tests."""

    def __init__(self) -> None:
        self.verdict: dict[str, list[str]] = {"passed": [], "failed": []}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed, in whichever phase, or that passed."""
        if report.failed or (report.when == "call" and report.passed):
            self.verdict[report.outcome].append(report.nodeid)
