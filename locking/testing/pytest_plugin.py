"""The pytest plugin: fixtures, and a setting that keeps every test's locks in memory.

Installed with the package (entry point `pytest11`); `-p no:locking` turns it off. Nothing changes until a
test asks for a fixture, or the project sets `locks_in_tests`:

    [tool.pytest.ini_options]
    locks_in_tests = "memory"    # or "isolated": the configured backend, under a prefix per test
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import pytest

from locking.testing.tools import isolate_locks, override_locks

SETTING: Final = "locks_in_tests"
MARKER: Final = "locks"
PLACES: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "configured": nullcontext,
    "memory": override_locks,
    "isolated": isolate_locks,
}
"""Where a test's locks may be kept."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting."""
    parser.addini(
        SETTING,
        "where tests keep locks: configured (as LOCKING says), memory (a store per test),"
        " isolated (as LOCKING says, under a prefix per test)",
        default="configured",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the setting and declare the marker."""
    config.addinivalue_line(
        "markers", f"{MARKER}(place): keep this test's locks in 'memory', 'isolated' or as 'configured'"
    )
    _place(config.getini(SETTING), SETTING)


@pytest.fixture(autouse=True)
def _locks_of_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the test's locks where its marker says, or else where the setting says."""
    marker = request.node.get_closest_marker(MARKER)
    place = request.config.getini(SETTING) if marker is None else (*marker.args, None)[0]
    with _place(place, f"the marker {MARKER}" if marker else SETTING)():
        yield


@pytest.fixture
def memory_locks() -> Iterator[None]:
    """Keep the locks of this test in memory, empty at its start."""
    with override_locks():
        yield


@pytest.fixture
def isolated_locks() -> Iterator[None]:
    """Keep the locks of this test on the configured backend, under a prefix that no other test has."""
    with isolate_locks():
        yield


def _place(value: object, source: str) -> Callable[[], AbstractContextManager[Any]]:
    if not isinstance(value, str) or value not in PLACES:
        raise pytest.UsageError(f"{source} must be one of {', '.join(PLACES)}, not {value!r}")
    return PLACES[value]
