"""What the tests of the lab share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import pytest

from orders.lab.race.worker_pool import WorkerGroup
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

    def fork(group: WorkerGroup, far_ends: Sequence[Connection]) -> WarmProcess:
        numbers = [far.fileno() for far in far_ends]
        try:
            return WarmProcess(
                ["-m", "orders.lab.race.worker"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=numbers,
            )
        finally:
            for far in far_ends:
                far.close()

    if "started_afresh" not in request.fixturenames:
        monkeypatch.setattr(WorkerGroup, "_start", fork)
