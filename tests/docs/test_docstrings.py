"""The examples in the docstrings that the reference is made of run."""

from __future__ import annotations

import doctest
import inspect
from typing import Any
from unittest.mock import Mock

import pytest
from celery import shared_task
from django.utils.module_loading import import_string

import locking
from locking import testing
from locking.contrib.celery import UniqueTask
from locking.contrib.health import readiness
from tests.docs.test_names import documented

STAND_INS = ("place_order", "build_feed", "publish", "rebuild", "render", "send", "send_report")
"""Functions of a project that the examples call."""


def described(path: str) -> list[Any]:
    """Return what an entry of the reference shows: the object and, of a class, its public methods."""
    found = import_string(path)
    if not inspect.isclass(found):
        return [found] if inspect.isfunction(found) else []
    return [
        found,
        *(value for name, value in vars(found).items() if name[0] != "_" and inspect.isfunction(value)),
    ]


def examples() -> list[Any]:
    """Return the docstrings' examples, one test for each object."""
    finder = doctest.DocTestFinder(recurse=False)
    found = [
        test for path in documented() for each in described(path) for test in finder.find(each, globs={})
    ]
    return [test for test in found if test.examples]


def known_names() -> dict[str, Any]:
    """Return what a reader has imported, or has in the project."""
    exported = {name: getattr(module, name) for module in (locking, testing) for name in module.__all__}
    stand_ins = {name: Mock(return_value=None) for name in STAND_INS}
    others = {"shared_task": shared_task, "UniqueTask": UniqueTask, "readiness": readiness, "pytest": pytest}

    @locking.distributed_lock(key="order:{order_id}")
    def pay(order_id: int) -> None:
        """What the examples lock."""

    return exported | stand_ins | others | {"pay": pay, "__name__": "examples"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("example", examples(), ids=lambda test: test.name)
def test_an_example_runs(example: doctest.DocTest) -> None:
    """The example of a docstring runs, with the names of `locking` imported, and prints what it says."""
    example.globs = known_names()
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)
    assert report == []


def test_most_entries_have_an_example() -> None:
    """The ways to lock, to run a transaction and to test have an example each."""
    shown = {test.name.rpartition(".")[2] for test in examples()}
    assert {"get_lock", "locked_transaction", "distributed_lock", "current_lease", "assert_locked"} <= shown
    assert len(shown) >= 15
