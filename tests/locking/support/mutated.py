"""A pytest plugin: one line of `locking` is changed, as HOLDFAST_MUTANT says (`test_promise_mutants.py`)."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import CodeType
from typing import Any


class MutatedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module with one line changed; what it compiled is kept nowhere."""

    def get_code(self, fullname: str) -> CodeType:
        source, (old, new) = self.get_source(fullname), CHANGE
        assert source is not None
        assert source.count(old) == 1, f"{self.path} has {source.count(old)} times: {old}"
        code: CodeType = compile(source.replace(old, new), self.path, "exec")
        return code


class Finder(importlib.abc.MetaPathFinder):
    """Finds the module that is changed."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = MutatedLoader(fullname, spec.origin)
        return spec


MODULE, *CHANGE = json.loads(os.environ["HOLDFAST_MUTANT"])
assert MODULE not in sys.modules, "too late: it is imported"
sys.meta_path.insert(0, Finder())


def pytest_configure() -> None:
    """Use the database of the run that has started this one, instead of making one more."""
    from django.conf import settings

    default = settings.DATABASES["default"]
    default["TEST"] = {**default.get("TEST", {}), "NAME": default["NAME"]}
