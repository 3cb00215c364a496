"""A docstring or comment names only what there is: modules, classes, attributes, files."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.test_names import NOT_PYTHON, exists

FOLDERS = ("locking", "inventory", "orders", "config", "tests", "benchmarks", "histories", "examples")
IMPORTED = ("locking", "inventory", "orders", "config")
"""Packages whose dotted paths are imported; the others' names are looked for in the code."""

NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+|[A-Za-z_]\w*(?=\(\)))(?:\([^`]*\))?`")
FILE = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|lua))`")
CHECK = re.compile(r"\w+\.[EWI]\d{3}")
FOREIGN = {"concurrency.Mutex", "locking.events"}
"""A class of etcd's client for Go, and a logger."""


def identifiers_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of a syntax tree has."""
    for field in ("id", "attr", "arg", "name", "asname", "module"):
        if isinstance(text := getattr(node, field, None), str):
            yield from text.split(".")


@cache
def project() -> tuple[dict[Path, str], set[str]]:
    """Return the docstrings and comments of each file, and every name in the code."""
    prose, names = {}, {*dir(builtins), "py", "lua", "json"}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        texts = re.findall(r"#.*", source)
        for node in ast.walk(ast.parse(source)):
            names.update(identifiers_in(node))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                texts.append(str(node.value.value))
        prose[path] = "\n".join(texts)
        names.update(path.relative_to(ROOT).with_suffix("").parts)
    for script in (ROOT / "locking").rglob("*.lua"):
        names |= {script.stem, *re.findall(r"\w+", script.read_text())}
    return prose, names


def is_there(name: str) -> bool:
    """Return whether a name is one of a module, a class or an attribute."""
    if CHECK.fullmatch(name) or NOT_PYTHON.fullmatch(name) or name in FOREIGN:
        return True
    if name.partition(".")[0] in IMPORTED and "." in name:
        return exists(name)
    return project()[1].issuperset(name.split("."))


def test_names_in_docstrings_exist() -> None:
    """A dotted name or a call in backticks, in a docstring or comment, is one that there is."""
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in project()[0].items()
        for name in NAME.findall(text)
        if not is_there(name)
    ]
    assert lost == []


def test_files_in_docstrings_exist() -> None:
    """A path in a docstring or comment leads to a file: from the root, its package or its own folder."""
    lost = [
        f"{path.relative_to(ROOT)}: {named}"
        for path, text in project()[0].items()
        for named in FILE.findall(text)
        if not any((base / named).exists() for base in path.parents)
    ]
    assert lost == []


@pytest.mark.parametrize("name", ["locking.core.lease.State.HOLDED", "Waiter.exorcised", "undertaker_of"])
def test_a_name_that_is_gone_is_noticed(name: str) -> None:
    """A module's, a class's and a function's name that don't exist differ from those that do."""
    assert not is_there(name)
    assert is_there("locking.core.lease.State")
    assert is_there("Waiter.sleep")
