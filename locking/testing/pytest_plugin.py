"""The pytest plugin: every test's locks are in memory, unless the project or the test says otherwise.

Installed with the package (entry point `pytest11`); `-p no:locking` turns it off.

    [tool.pytest.ini_options]
    locks_in_tests = "configured"    # as LOCKING says; "isolated": under a prefix per test
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import pytest
from django.conf import settings
from django.test import override_settings

from locking.testing import forget_locks, isolate_locks, override_locks

SETTING: Final = "locks_in_tests"
MARKER: Final = "locks"
PLACES: Final = ("memory", "configured", "isolated")
"""A store per test, as LOCKING says, or as LOCKING says under a prefix per test."""
_configured = pytest.StashKey[Any]()  # `LOCKING` as the project has it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting."""
    parser.addini(SETTING, f"where tests keep their locks: {', '.join(PLACES)}", default="memory")


def pytest_configure(config: pytest.Config) -> None:
    """Check the setting and declare the marker."""
    config.addinivalue_line(
        "markers", f"{MARKER}(place): keep this test's locks in 'memory', 'isolated' or as 'configured'"
    )
    _place(config.getini(SETTING), SETTING)


@pytest.fixture(autouse=True, scope="session")
def _locks_of_the_run(pytestconfig: pytest.Config) -> Iterator[None]:
    """Keep locks in memory from the first test to the last: to change settings for each would cost more."""
    place = pytestconfig.getini(SETTING) if _uses_django() else "configured"
    pytestconfig.stash[_configured] = getattr(settings, "LOCKING", {}) if _uses_django() else None
    with override_locks() if place == "memory" else nullcontext():
        yield


@pytest.fixture(autouse=True)
def _locks_of_the_test(request: pytest.FixtureRequest, _locks_of_the_run: None) -> Iterator[None]:
    """Keep the test's locks where its marker says, or else where the setting says."""
    marker, usual = request.node.get_closest_marker(MARKER), request.config.getini(SETTING)
    place = usual if marker is None else _place((*marker.args, None)[0], f"the marker {MARKER}")
    if not _uses_django():
        yield
    elif place == usual == "memory":
        yield
        forget_locks()
    else:
        with _keeping(place, request.config):
            yield


def _uses_django() -> bool:
    return bool(settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE"))


@contextmanager
def _keeping(place: str, config: pytest.Config) -> Iterator[None]:
    """Keep locks there inside the block, wherever the run keeps them."""
    is_elsewhere = place != "memory" and config.getini(SETTING) == "memory"
    put_back = override_settings(LOCKING=config.stash[_configured]) if is_elsewhere else nullcontext()
    keeping = {"memory": override_locks, "isolated": isolate_locks, "configured": nullcontext}[place]
    with put_back, keeping():
        yield


@pytest.fixture
def memory_locks() -> Iterator[None]:
    """Keep the locks of this test in memory, empty at its start."""
    with override_locks():
        yield


@pytest.fixture
def isolated_locks(pytestconfig: pytest.Config) -> Iterator[None]:
    """Keep the locks of this test on the configured backend, under a prefix that no other test has."""
    with _keeping("isolated", pytestconfig):
        yield


def _place(value: object, source: str) -> str:
    if value not in PLACES:
        raise pytest.UsageError(f"{source} must be one of {', '.join(PLACES)}, not {value!r}")
    return str(value)
