"""`@distributed_lock` on tasks of other queues: their own retries decide about a refused task."""

from __future__ import annotations

from typing import Any

import dramatiq
import pytest
from django.db import connections
from django_redis import get_redis_connection
from dramatiq.brokers.stub import StubBroker
from huey.api import MemoryHuey
from huey.exceptions import TaskException
from rq.job import Job

from locking import LockNotAcquired, distributed_lock
from locking.testing import held_locks, override_locks, simulate_contention

pytestmark = pytest.mark.django_db(transaction=True)

RAN: list[int] = []


@pytest.fixture(autouse=True)
def locks() -> Any:
    """Keep locks in memory, and begin with no task that ran."""
    RAN.clear()
    with override_locks():
        yield


@distributed_lock(key="order:{order_id}", wait=0)
def capture(order_id: int) -> str:
    """Note that it ran, and under which lock."""
    RAN.append(order_id)
    return ",".join(held_locks())


def test_a_job_of_rq() -> None:
    """RQ's job runs under the lock; refused, it raises, which RQ's `Retry` counts."""
    connection = get_redis_connection()

    def performed() -> Any:
        return Job.create(capture, (42,), connection=connection).perform()

    assert performed() == "order:42"
    with simulate_contention("order:42"), pytest.raises(LockNotAcquired):
        performed()
    assert RAN == [42]


class ClosedConnections(dramatiq.Middleware):
    """Ends a worker thread's connections to the database with its message, as a request's end does."""

    def after_process_message(self, *args: Any, **kwargs: Any) -> None:
        """Close them."""
        connections.close_all()


def test_an_actor_of_dramatiq() -> None:
    """Dramatiq's actor runs under the lock; refused, it is put back by the retries of the broker."""
    retries = dramatiq.middleware.Retries(max_retries=3, min_backoff=1, max_backoff=1)
    broker = StubBroker(middleware=[retries, ClosedConnections()])
    actor: Any = dramatiq.actor(broker=broker)(capture)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    try:
        with simulate_contention("order:42"):
            actor.send(42)
            with pytest.raises(LockNotAcquired):
                broker.join(actor.queue_name, timeout=20_000, fail_fast=True)
        assert RAN == []
        actor.send(42)
        broker.join(actor.queue_name, timeout=20_000, fail_fast=False)
        worker.join()
        assert RAN == [42]
    finally:
        worker.stop()
        broker.close()


def test_a_task_of_huey() -> None:
    """Huey's task runs under the lock; refused, it raises, and `retries` counts down."""
    huey = MemoryHuey("shop", immediate=True)
    task = huey.task(retries=1)(capture)
    assert task(42).get() == "order:42"
    with simulate_contention("order:42"):
        refused = task(42)
        with pytest.raises(TaskException, match="order:42"):
            refused.get()
    assert RAN == [42]
