"""A pytest plugin: one line of `locking` is changed, as HOLDFAST_MUTANT says (`test_promise_mutants.py`).

The functions of the module get the code of the changed one, wherever they were imported or wrapped meanwhile:
so a process in which Django is set up already can be changed too.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType


def change(name: str, old: str, new: str) -> None:
    """Replace a part that the module has once."""
    path = import_module(name).__file__
    assert path is not None
    source = Path(path).read_text()
    assert source.count(old) == 1, f"{path} has {source.count(old)} times: {old}"
    mutants = dict(_pairs(compile(source, path, "exec"), compile(source.replace(old, new), path, "exec")))
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
    """Change the line, and use the database of the run that has started this one."""
    from django.conf import settings

    change(*json.loads(os.environ["HOLDFAST_MUTANT"]))
    default = settings.DATABASES["default"]
    default["TEST"] = {**default.get("TEST", {}), "NAME": default["NAME"]}
