"""Every public name of `locking` is documented; an override without words of its own inherits its base's."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import locking


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(locking.__path__, "locking."):
        if ".migrations" not in found.name:
            yield importlib.import_module(found.name)


KINDS_OF_METHOD = (FunctionType, property, classmethod, staticmethod)


def methods_of(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        ours = str(getattr(function, "__module__", "")).startswith("locking")  # Django makes some for forms
        if ours and not name.startswith("_") and isinstance(member, KINDS_OF_METHOD):
            yield name, getattr(kind, name)


def undocumented() -> Iterator[str]:
    for module in modules():
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__ and not kind.__name__.startswith("_"):
                for name, method in methods_of(kind):
                    if not inspect.getdoc(method):
                        yield f"{module.__name__}.{kind.__name__}.{name}"


def test_every_public_method_has_a_docstring() -> None:
    """Its own or its base class's: `inspect.getdoc` and Sphinx find both."""
    assert list(undocumented()) == []
