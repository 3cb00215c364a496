"""What the tests of the lab share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orders.lab.race import worker_pool
from tests.lab.interleaving import close_idle_connections
from tests.support.warm import WarmProcess


@pytest.fixture(autouse=True, scope="module")
def idle_buyers_are_closed() -> Iterator[None]:
    """Close the connections that the buyers of a module have left open."""
    yield
    close_idle_connections()


@pytest.fixture
def started_afresh() -> None:
    """Have races start an interpreter for their workers, as they do outside of tests."""


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers of races from a process that has loaded the shop already."""

    def fork(command: list[str], cwd: Path, **options: Any) -> WarmProcess:
        arguments = command[1 : -len(options["pass_fds"])]  # without the interpreter and their numbers here
        return WarmProcess(arguments, **options)

    if "started_afresh" not in request.fixturenames:
        forking = SimpleNamespace(**vars(subprocess) | {"Popen": fork})
        monkeypatch.setattr(worker_pool, "subprocess", forking)
