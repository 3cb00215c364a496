"""`@distributed_lock` and `UniqueTask` in a real worker on a real broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from locking import BackendUnavailable, Lease, LockNotAcquired, get_lock
from tests.locking.contrib.worker import tasks
from tests.locking.contrib.worker.app import app
from tests.locking.contrib.worker.running import begin_in_time, said, tell, worker
from tests.locking.support.helpers import committed, elsewhere
from tests.private_redis import PrivateRedis, private_redis
from tests.support.processes import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def broker() -> Iterator[PrivateRedis]:
    """The broker: a Redis server of its own, since tests empty the one that has the locks."""
    with private_redis() as server:
        yield server


def address(broker: PrivateRedis, database: int) -> str:
    """One of the broker's databases."""
    return f"redis+socket://{broker.path}?virtual_host={database}"


@pytest.fixture(scope="module", params=["prefork", "threads"])
def pool(
    request: pytest.FixtureRequest,
    broker: PrivateRedis,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
) -> Iterator[str]:
    """A worker of either kind, two tasks at a time."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    database = {"prefork": 0, "threads": 1}[request.param]
    with worker(address(broker, database), folder, "--pool", request.param, "--concurrency", "2"):
        yield request.param


prefork = pytest.mark.parametrize("pool", ["prefork"], indirect=True)
"""Where tasks have processes of their own: the threads of a pool can't be killed, nor limited in time."""


@pytest.fixture
def order_taken() -> Iterator[Lease]:
    """Another thread works on order 7, until it lets go."""
    lease = elsewhere(get_lock("order:7", ttl=60).acquire)
    yield lease
    if lease.remaining():
        elsewhere(lease.release)


def is_free(name: str) -> bool:
    """Return whether the lock is free."""
    return not get_lock(name).locked()


def free(name: str) -> None:
    """Wait until the lock is free."""
    until(lambda: is_free(name), f"{name} is free")


# --- policies ---------------------------------------------------------------------------------------------


def test_a_task_runs_under_its_lock(pool: str) -> None:
    """The work is committed and the lock let go."""
    tasks.unbound.delay(1)
    said("unbound done")
    free("order:1")
    assert committed() == ["unbound 1"]


def test_a_busy_lock_brings_the_task_back(pool: str, order_taken: Lease) -> None:
    """The task waits in the queue, not in the worker, and runs once the lock is free."""
    tasks.retried.delay(7)
    said("RETRY retried")
    tasks.mark.delay("next")
    said("next")
    assert committed() == []
    elsewhere(order_taken.release)
    assert said("retried") == "retried, with 0 of its own retries"
    free("order:7")
    assert committed() == ["retried 7"]


@pytest.mark.parametrize(
    ("task", "end"), [(tasks.skipped, "SUCCESS skipped"), (tasks.raised, "FAILURE raised")]
)
def test_skip_and_raise_do_nothing(pool: str, order_taken: Lease, task: Any, end: str) -> None:
    """Both leave the work undone, and the worker goes on."""
    task.delay(7)
    said(end)
    tasks.mark.delay("next")
    said("next")
    assert committed() == []
    assert order_taken.remaining()


TASKS = 100


@pytest.mark.timeout(600)
def test_a_hundred_tasks_wait_for_one_lock_and_none_fails(
    broker: PrivateRedis, tmp_path: Path, redis_database: redis.Redis, django_db_setup: None
) -> None:
    """Waiting isn't failing, also where the process of a task that has the lock is killed, twice."""
    redis_database.set("doomed", 2)
    with worker(address(broker, 3), tmp_path, "--pool", "prefork", "--concurrency", "4"):
        for number in range(TASKS):
            tasks.count.delay(number)
        for _ in range(2):
            os.kill(int(said("doomed").split()[1]), signal.SIGKILL)
        until(lambda: len(committed()) >= TASKS, "all are done", within=540)
        free("shelf")
    assert committed() == [f"count {number:03}" for number in range(TASKS)]
    log = (tmp_path / "worker.log").read_text()
    assert log.count("exited with 'signal 9 (SIGKILL)'") == 2
    assert "raised unexpected: LockNotAcquired" not in log


# --- time limits and deaths -------------------------------------------------------------------------------


@prefork
def test_a_soft_time_limit_rolls_back_and_lets_go(pool: str) -> None:
    """The limit is an exception in the body: nothing is committed, the lock is free at once."""
    begin_in_time(tasks.soft, "soft_time_limit")
    said("soft limit")
    free("order:7")
    assert committed() == []


@prefork
def test_a_hard_time_limit_rolls_back_too(pool: str) -> None:
    """The process is ended: nothing was committed, and the lock is free within its ttl."""
    begin_in_time(tasks.hard, "time_limit")
    free("order:7")
    assert committed() == []


@prefork
def test_a_killed_task_is_run_again_and_takes_its_own_lock_over(pool: str) -> None:
    """Killed in mid-task with acks_late, the task is redelivered and needn't wait out its own 30 s lease."""
    tasks.late.delay()
    first = int(said("late").split()[1])
    os.kill(first, signal.SIGKILL)
    assert int(said("late").split()[1]) != first
    free("order:7")
    assert committed() == ["late, redelivered: True"]


@prefork
def test_another_task_does_not_take_over(pool: str) -> None:
    """Only the same task may end its own earlier hold: another one stays out."""
    tasks.slow.delay()
    said("slow, redelivered: False")
    tasks.skipped.delay(7)
    tasks.mark.delay("after")
    said("after")
    tell("go on")
    free("order:7")
    assert committed() == ["slow, redelivered: False"]


def test_a_visibility_time_out_shorter_than_the_task_costs_the_first_run(
    broker: PrivateRedis, tmp_path: Path, django_db_setup: None
) -> None:
    """A task given out again while it still runs: the first run has lost its lock and rolls back."""
    options = ("--pool", "threads", "--concurrency", "2")
    with worker(address(broker, 2), tmp_path, *options, visibility=4):
        tasks.slow.delay()
        assert said("slow") == "slow, redelivered: False"
        assert said("slow") == "slow, redelivered: True"
        free("order:7")
        assert committed() == ["slow, redelivered: True"]
        tell("go on")
    assert "LockLost" in (tmp_path / "worker.log").read_text()
    assert committed() == ["slow, redelivered: True"]


# --- queued once at a time --------------------------------------------------------------------------------


def test_a_unique_task_is_queued_once(pool: str) -> None:
    """While it is queued or runs, a second one is refused; afterwards it may come again."""
    tasks.report_once.delay(2026, "wait")
    with pytest.raises(LockNotAcquired, match="report:2026"):
        tasks.report_once.delay(2026)
    said("report")
    with pytest.raises(LockNotAcquired):
        tasks.report_once.delay(2026)
    assert tasks.report_skipped.delay(2026) is None
    tasks.report_once.delay(2025)
    said("report done")
    tell("go on")
    said("report done")
    free("report:2026")
    tasks.report_once.delay(2026)
    said("report done")


def test_a_second_call_joins_the_running_task(pool: str) -> None:
    """Queued or running in a worker, the task's own id comes back, and nothing is sent."""
    first = tasks.report_joined.delay(2026, "wait")
    said("report")
    assert tasks.report_joined.delay(2026).id == first.id
    tell("go on")
    said("report done")
    free("report:2026")


def test_a_task_that_is_unique_until_it_starts_is_queued_again(pool: str) -> None:
    """While one runs another is queued, and a third isn't."""
    tasks.reindex.delay(2026, "wait")
    said("reindex began")
    assert tasks.reindex.delay(2026) is not None
    said("reindex done")  # the second one's: two run at a time
    tell("go on")
    said("reindex done")
    free("report:2026")


def test_a_unique_task_that_fails_lets_go(pool: str) -> None:
    """An error is an end like any other."""
    tasks.report_once.delay(2026, "raise")
    said("report")
    free("report:2026")


def test_a_unique_task_keeps_its_place_over_a_retry(pool: str) -> None:
    """Between two tries the task is queued, so it stays unique, and it runs to its end."""
    tasks.report_once.delay(2026, "retry")
    said("report done")
    free("report:2026")


def test_a_revoked_unique_task_lets_go(pool: str) -> None:
    """A task that has expired never runs: its place is free as soon as the worker has seen that."""
    result = tasks.report_once.apply_async((2026,), expires=-1)
    assert result is not None
    free("report:2026")


@prefork
def test_a_killed_unique_task_runs_again(pool: str) -> None:
    """The redelivered task takes over what its killed process held."""
    tasks.report_late.delay(2026, "die")
    first = int(said("report").split()[1])
    os.kill(first, signal.SIGKILL)
    said("report done")
    free("report:2026")


def test_what_could_not_be_sent_is_not_queued(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the broker refuses the message, the place is given back."""

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no broker")

    monkeypatch.setattr(type(app.amqp), "send_task_message", property(lambda _: refuse))
    with pytest.raises(OperationalError, match="no broker"):
        tasks.report_once.delay(2026)
    assert is_free("report:2026")


def test_without_locks_nothing_is_queued(backend_down: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the task is queued already is unknown, so it isn't queued."""
    monkeypatch.setattr(tasks.Once, "unique_backend", backend_down)
    with pytest.raises(BackendUnavailable):
        tasks.report_once.delay(2026)
