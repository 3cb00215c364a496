"""What the tests of stock share: the three databases, and a `Stock` in each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from inventory import Stock
from tests.locking.support.mariadb import MISSING, programs, running_mariadb
from tests.support.garbage import pytest_collection

__all__ = ["pytest_collection"]

DATABASES = ("default", "mariadb", "sqlite")


def on(*databases: str, transaction: bool = False) -> list[Any]:
    """Return parameters that run a test on each of these databases."""
    return [
        pytest.param(each, marks=pytest.mark.django_db(databases=[each], transaction=transaction), id=name)
        for each in databases
        for name in ("postgresql" if each == "default" else each,)
    ]


def _needs_mariadb(items: list[pytest.Item]) -> bool:
    marks = (item.get_closest_marker("django_db") for item in items)
    return any("mariadb" in (mark.kwargs.get("databases") or ()) for mark in marks if mark)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    request: pytest.FixtureRequest, django_db_modify_db_settings_parallel_suffix: None
) -> Iterator[None]:
    """Start a MariaDB of the tests' own where one of them needs it."""
    from django.db import connections

    with ExitStack() as stack:
        if _needs_mariadb(request.session.items):
            if programs() is None:
                pytest.skip(MISSING)
            socket = stack.enter_context(running_mariadb())
            connections["mariadb"].settings_dict["OPTIONS"]["unix_socket"] = socket
        yield


@pytest.fixture(params=on(*DATABASES))
def using(request: pytest.FixtureRequest) -> str:
    """The alias of each database in turn; the test is rolled back."""
    return str(request.param)


@pytest.fixture(params=on(*DATABASES, transaction=True))
def committing(request: pytest.FixtureRequest) -> str:
    """The alias of each database in turn; the test commits, and the database is emptied behind it."""
    return str(request.param)


@pytest.fixture
def stock(using: str) -> Stock:
    """The stock of the database in turn."""
    return Stock(database=using)
