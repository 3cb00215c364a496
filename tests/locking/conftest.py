"""Fixtures of the tests of `locking`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from locking.lease import SingleLease
from tests.lock_fixtures import *  # noqa: F403
from tests.locking.support import committed


@pytest.fixture
def at_release(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What another connection sees at the very moment at which each lock is let go."""
    seen: list[list[str]] = []
    release = SingleLease.release

    def spy(lease: SingleLease) -> None:
        seen.append(committed())
        release(lease)

    monkeypatch.setattr(SingleLease, "release", spy)
    return seen


@pytest.fixture
def second_database(transactional_db: None) -> Iterator[str]:
    """A second alias, on the same server."""
    second = connections["default"].copy("second")
    second.connect()  # before it is registered: tests may not connect to an alias that isn't theirs
    connections.settings["second"] = second.settings_dict
    connections["second"] = second
    yield "second"
    second.close()
    del connections["second"]
    del connections.settings["second"]


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> None:
    """Every view runs in a transaction of its own, as many projects have it."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture
def backend_down(settings: Any) -> str:
    """An alias whose Redis doesn't answer."""
    down: dict[str, Any] = {
        "BACKEND": "locking.backends.redis.RedisBackend",
        "LOCATION": "unix:///nowhere/redis.sock",
    }
    settings.LOCKING = {**settings.LOCKING, "down": down}
    return "down"
