"""`@distributed_lock` on Celery tasks, run by Celery's own tracer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery, Signature, Task
from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.exceptions import Retry
from django.contrib.auth.models import Group
from hypothesis import given
from hypothesis import strategies as st

from locking import (
    BackendUnavailable,
    Lease,
    LockLost,
    LockNotAcquired,
    assert_locked,
    current_lease,
    distributed_lock,
    get_lock,
    get_read_lock,
    get_semaphore,
)
from locking.checks import check_celery
from locking.conf import LONGEST_COUNTDOWN
from locking.contrib import celery as module
from locking.contrib.celery import countdown
from locking.core.kinds import lock_of
from locking.core.lease import SingleLease, State
from locking.core.options import CheckedOptions
from locking.utils.ownership import client_of_work
from tests.lock_fixtures import TurnedClock
from tests.locking.support.helpers import committed, elsewhere

pytestmark = pytest.mark.django_db(transaction=True)

app = Celery("tests", broker="memory://", set_as_current=False)


@app.task
@distributed_lock(key="'order:'+<order_id>", wait=0)
def unbound(order_id: int) -> str:
    assert_locked(f"order:{order_id}")
    Group.objects.create(name="unbound")
    return "done"


@app.task(bind=True)
@distributed_lock(key="'order:'+<order_id>", wait=0)
def bound(self: Task, order_id: int) -> str:
    assert_locked(f"order:{order_id}")
    return f"done after {self.request.retries}"


@app.task(bind=True)
@distributed_lock(wait=0)
def without_key(self: Task, order_id: int) -> None:
    assert_locked(f"{__name__}.without_key:order_id={order_id}")


@app.task
@distributed_lock(key="'order:'+<order_id>", wait=0, on_conflict="skip")
def skipping(order_id: int) -> str:
    return pytest.fail("the body ran without its lock")


@app.task
@distributed_lock(key="'order:'+<order_id>", wait=0, on_conflict="raise")
def raising(order_id: int) -> str:
    return pytest.fail("the body ran without its lock")


@app.task
@distributed_lock(key="'order:1'", backend="down", on_conflict="skip")
def skipping_without_backend() -> None:
    pytest.fail("the body ran without its lock")


@distributed_lock(key="'order:7'", wait=0)
def helper() -> None:
    pytest.fail("the body ran without its lock")


@app.task
def calling_a_helper() -> None:
    helper()


@pytest.fixture
def order_taken() -> Iterator[Lease]:
    """Another thread works on order 7 for the whole test, or until it lets go."""
    lease = elsewhere(get_lock("order:7", ttl=60).acquire)
    yield lease
    if lease.remaining():
        elsewhere(lease.release)


@pytest.fixture
def retries(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `task.retry` was asked for, instead of a message to the broker."""
    asked: list[dict[str, Any]] = []

    def retry(task: Task, **options: Any) -> Retry:
        asked.append(options)
        return Retry("again", exc=options["exc"], when=options["countdown"])

    monkeypatch.setattr(Task, "retry", retry)
    return asked


def test_a_task_runs_under_its_lock(at_release: list[list[str]]) -> None:
    """The task's row is committed when its lock is let go."""
    assert unbound.apply(args=(7,)).get() == "done"
    assert at_release == [["unbound"]]


def test_a_bound_task_leaves_itself_out_of_the_key() -> None:
    """`self` of a bound task is no part of what is locked, neither in a template nor by default."""
    assert bound.apply(args=(7,)).get() == "done after 0"
    without_key.apply(args=(7,)).get()


@pytest.mark.parametrize("task", [unbound, bound])
def test_a_conflict_is_tried_again(task: Any, order_taken: Lease, retries: list[dict[str, Any]]) -> None:
    """The task goes back to its queue, with the conflict as the reason and a countdown of seconds."""
    result = task.apply(args=(7,))
    assert result.state == "RETRY"
    assert isinstance(retries[0]["exc"], LockNotAcquired)
    assert 0 < retries[0]["countdown"] <= 2
    assert committed() == []


def test_a_retried_task_runs_once_the_lock_is_free(
    order_taken: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder lets go between the first try and the second, which then succeeds."""
    retry = Task.retry

    def let_go_first(task: Task, *args: Any, **options: Any) -> Any:
        elsewhere(order_taken.release)
        return retry(task, *args, **options)

    monkeypatch.setattr(Task, "retry", let_go_first)
    result = bound.apply(args=(7,))
    assert result.get() == "done after 1"


def test_an_eager_tasks_retries_run_out_as_lock_not_acquired(order_taken: Lease) -> None:
    """It doesn't wait for its countdown, so its own `max_retries` end it: the conflict is its error."""
    with pytest.raises(LockNotAcquired):
        unbound.apply(args=(7,)).get()
    assert committed() == []


@app.task
@distributed_lock(key="'order:'+<order_id>", wait=0, retry_for=100)
def patient(order_id: int) -> None:
    pytest.fail("the body ran without its lock")


def delivered(task: Any, **request: Any) -> Any:
    """Run a task as a worker does that has this request; return what it was sent back as, or its error."""
    sent: list[Any] = []
    _task_stack.push(task)
    task.push_request(id="1", args=(7,), kwargs={}, called_directly=False, is_eager=False, **request)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Signature, "apply_async", lambda signature: sent.append(signature))
            task.run(7)
    except Retry:
        return sent[0].options if sent else None
    except LockNotAcquired as error:
        return error
    finally:
        task.pop_request()
        _task_stack.pop()


def test_waiting_for_a_lock_uses_none_of_a_tasks_retries(order_taken: Lease) -> None:
    """However often it comes back; its message says how often, after how many seconds of waiting."""
    headers: dict[str, Any] = {"own": "kept"}
    for tries in range(1, 8):
        options = delivered(unbound, retries=unbound.max_retries, headers=headers)
        assert options["retries"] == unbound.max_retries
        headers = options["headers"]
        assert headers["own"] == "kept"
        assert headers[module.WAITED][0] == tries


@pytest.mark.parametrize("where", ["headers", "attribute"])
def test_a_task_that_has_waited_long_enough_fails(order_taken: Lease, where: str) -> None:
    """`retry_for` is the budget of the whole waiting: when it is used up the conflict is the task's error."""

    def after(seconds: float) -> Any:
        waited = {module.WAITED: [9, seconds]}
        return delivered(patient, **({"headers": waited} if where == "headers" else waited))

    assert after(99)["headers"][module.WAITED][0] == 10
    error = after(100)
    assert isinstance(error, LockNotAcquired)
    assert error.__notes__ == ["the task was retried 9 times in 100 s (retry_for=100)"]


def test_skip_ends_the_task(order_taken: Lease) -> None:
    """With `skip` another worker is at it, and this task has nothing to do."""
    result = skipping.apply(args=(7,))
    assert result.state == "SUCCESS"
    assert result.result is None


def test_skip_is_no_excuse_for_an_outage(backend_down: str) -> None:
    """When the backend is down no other run is known."""
    with pytest.raises(BackendUnavailable):
        skipping_without_backend.apply().get()


def test_raise_fails_the_task(order_taken: Lease, retries: list[dict[str, Any]]) -> None:
    """With `raise` the task fails at once."""
    with pytest.raises(LockNotAcquired):
        raising.apply(args=(7,)).get()
    assert retries == []


def test_a_function_called_by_a_task_raises(order_taken: Lease, retries: list[dict[str, Any]]) -> None:
    """Only the task's own body is retried; a helper's conflict is the body's to handle."""
    with pytest.raises(LockNotAcquired):
        calling_a_helper.apply().get()
    assert retries == []


def test_a_task_called_as_a_function_raises(order_taken: Lease) -> None:
    """Called directly there is no queue to go back to."""
    with pytest.raises(LockNotAcquired):
        unbound(7)


def test_the_decorator_goes_below_the_task() -> None:
    """Around a finished task it would lock the caller, not the work."""
    with pytest.raises(TypeError, match="below @shared_task"):
        distributed_lock(key="'a'")(unbound)


def task_under(body: Any, **options: Any) -> Any:
    """Return a task whose body runs under a lock with these options."""

    def run() -> None:
        body()

    return app.task(name=f"under-{len(app.tasks)}")(distributed_lock(key="'shared'", wait=0, **options)(run))


OTHERS = {
    "read": lambda: get_read_lock("shared", ttl=30),
    "semaphore": lambda: get_semaphore("shared", permits=2, ttl=30),
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("first", ["task", "other"])
def test_a_task_commits_beside_other_holders_of_its_lock(kind: Any, first: str) -> None:
    """Before COMMIT the task asks whether it holds the lock, not who does: many read or have permits."""
    others: list[Lease] = []

    def join() -> None:
        others.append(elsewhere(OTHERS[kind]().acquire))

    def body() -> None:
        if first == "task":
            join()
        Group.objects.create(name="stored")

    if first == "other":
        join()
    options = {"permits": 2} if kind == "semaphore" else {}
    task_under(body, kind=kind, ttl=60, **options).apply().get()
    assert committed() == ["stored"]
    elsewhere(others[0].release)


@pytest.mark.parametrize("backend", ["TransactionLockBackend", "RowLockBackend"])
def test_a_task_commits_under_a_lock_of_its_transaction(backend: str, settings: Any) -> None:
    """An engine that shows no owner, or another one, can still say that the task's lock is held."""
    entry = {"BACKEND": f"locking.backends.database.{backend}"}
    settings.LOCKING = {**settings.LOCKING, "in-transaction": entry}
    task_under(lambda: Group.objects.create(name="stored"), backend="in-transaction").apply().get()
    assert committed() == ["stored"]


@pytest.mark.parametrize("kind", ["read", "semaphore"])
def test_a_redelivered_task_takes_over_its_own_hold_among_others(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery before is one of several holders, and not the one that the backend names: it has lost."""
    permits: dict[str, Any] = {"permits": 3} if kind == "semaphore" else {}
    kept: list[tuple[Lease, State]] = []

    def hold(task_id: str, ttl: float) -> Lease:
        lock = lock_of(("shared",), CheckedOptions(kind=kind, ttl=ttl, **permits))
        lock.act_for(client_of_work(task_id))
        return elsewhere(lock.acquire)

    before, first, last = hold("task-7", 60), hold("other-1", 50), hold("other-2", 70)

    def body() -> None:
        for lease in (before, first, last):
            with suppress(LockLost):
                lease.confirm()
            kept.append((lease, lease.state))

    monkeypatch.setattr(module.CeleryTask, "redelivered", True)
    task_under(body, kind=kind, **permits).apply(task_id="task-7").get()
    assert kept == [(before, State.LOST), (first, State.HELD), (last, State.HELD)]
    for lease in (first, last):
        lease.release()


def run_without_its_lock(kind: Any) -> None:
    """Run a task whose lock is taken from it before it commits, as a redelivery does."""

    def body() -> None:
        Group.objects.create(name="lost")
        (lease,) = current_lease().leases
        engine: Any = lease.backend
        elsewhere(lambda: engine.force_release(lease.key, lease.owner))

    task_under(body, kind=kind).apply().get()


@pytest.mark.parametrize("kind", ["lock", "read", "write"])
def test_a_task_whose_lock_was_taken_from_it_does_not_commit(kind: Any) -> None:
    """The backend says that the hold is over before this process knows: everything is rolled back."""
    with pytest.raises(LockLost):
        run_without_its_lock(kind)
    assert committed() == []


def test_mutant_a_task_that_asks_no_server_commits_without_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the question before COMMIT the earlier delivery of a task stores its work beside the later."""
    monkeypatch.setattr(SingleLease, "confirm", SingleLease.ensure_held)
    with suppress(LockLost):
        run_without_its_lock("lock")
    assert committed() == ["lost"]


def test_asking_before_the_commit_leaves_the_end_of_the_lease_where_it_was(turned_clock: TurnedClock) -> None:
    """A lock that is left to its ttl ends that long after it was acquired, not after the COMMIT."""
    ends: list[tuple[Lease, float]] = []

    def body() -> None:
        ends.append((current_lease(), current_lease().leases[0].deadline))
        turned_clock.advance(30)

    task_under(body, ttl=60).apply()
    ((lease, before),) = ends
    assert lease.leases[0].deadline == pytest.approx(before, abs=10)


@given(st.integers(0, 10**6), st.none() | st.floats(0, 10**6), st.none() | st.floats(0, 10**6))
def test_the_countdown_is_bounded(tries: int, lease_left: float | None, usual: float | None) -> None:
    """A task waits no longer than the holder's lease and ten usual holds, and never longer than a minute."""
    longest = min(
        LONGEST_COUNTDOWN,
        LONGEST_COUNTDOWN if lease_left is None else max(lease_left, 1),
        LONGEST_COUNTDOWN if usual is None else max(10 * usual, 2),
    )
    assert 0 < countdown(tries, lease_left, usual) <= longest


@pytest.mark.parametrize(("timeout", "reported"), [(60, True), (61, False), (None, False)])
def test_check_finds_a_visibility_time_out_shorter_than_a_countdown(
    timeout: float | None, reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a broker delivers a task again that only waits to be retried."""
    monkeypatch.setattr("celery.current_app", app)
    monkeypatch.setitem(app.conf, "broker_transport_options", {"visibility_timeout": timeout})
    found = [message.msg for message in check_celery()]
    text = (
        f"{__name__}.unbound is retried while its lock is taken, but the broker's visibility_timeout is 60 s."
    )
    assert (text in found) is reported
    assert bool(found) is reported


def test_celery_is_not_imported_for_those_without_it() -> None:
    """`locking` works where Celery isn't installed."""
    code = "import locking, sys; assert not [name for name in sys.modules if name.startswith('celery')]"
    subprocess.run([sys.executable, "-c", code], check=True)
