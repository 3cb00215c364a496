"""Public names are exported, documented and typed; documented names are exported."""

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import locking
from tests import ROOT

REFERENCE = ROOT / "docs" / "library" / "reference" / "overview.md"
ROW = re.compile(r"^\| `(locking[\w.]*)`[^|]*\|(.*)\|$", re.MULTILINE)
IMPORT = re.compile(r"^\s*from (locking[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)


def documented() -> dict[str, set[str]]:
    """The table of the reference: by module its public names."""
    section = REFERENCE.read_text().split("## Public names")[1].split("\n## ")[0]
    names: dict[str, set[str]] = {}
    for module, cell in ROW.findall(section):
        names.setdefault(module, set()).update(re.findall(r"`(\w+)`", cell))
    return names


PUBLIC = documented()


@pytest.mark.parametrize("module", PUBLIC)
def test_a_modules_exports_are_what_the_reference_names(module: str) -> None:
    """Both ways."""
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


def test_nothing_else_stands_in_the_package_itself() -> None:
    """`dir(locking)` has its exports and submodules only."""
    rest = {name for name in vars(locking) if not name.startswith("_")} - set(locking.__all__)
    assert {name for name in rest if not isinstance(getattr(locking, name), ModuleType)} == set()


def examples() -> Iterator[tuple[str, str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if page.parent.name != "adr":
            for module, names in IMPORT.findall(page.read_text()):
                for name in re.findall(r"\w+", names):
                    yield page.name, module, name


def test_the_docs_import_public_names_only() -> None:
    """An example that needs another name shows that one is missing."""
    assert [each for each in examples() if each[2] not in PUBLIC.get(each[1], ())] == []


def exported() -> Iterator[Any]:
    for module, names in PUBLIC.items():
        for name in sorted(names):
            yield pytest.param(getattr(importlib.import_module(module), name), id=f"{module}.{name}")


@pytest.mark.parametrize("thing", list(exported()))
def test_every_public_function_is_documented_and_typed(thing: Any) -> None:
    """A docstring, and an annotation for each parameter and the result."""
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return  # a signal
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        parameters = inspect.signature(thing).parameters.values()
        assert all(parameter.annotation is not parameter.empty for parameter in parameters)
        assert inspect.signature(thing).return_annotation is not inspect.Signature.empty


def test_the_types_are_shipped() -> None:
    """Type checkers look for this file."""
    assert (ROOT / "locking" / "py.typed").exists()
