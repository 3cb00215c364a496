"""`UniqueTask`: what a second `apply_async` is answered, and when the place is free again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from celery import Celery
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Retry
from celery.result import AsyncResult
from hypothesis import given
from hypothesis import strategies as st

from locking import BackendUnavailable, LockNotAcquired, get_lock
from locking.backends.base import Busy
from locking.contrib.celery import CeleryTask, QueueSlot, UniqueTask
from locking.core.handler import locks
from locking.core.pending_release import release_retrier
from locking.testing.contract.base import until
from locking.utils.ownership import client_of_work, is_owner_of, new_owner, owner_of_work, work_of
from tests.locking.support.helpers import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)

app = Celery("tests.unique", broker="memory://", backend="cache+memory://", set_as_current=False)

NAME = "report:2026"


class Report(UniqueTask):
    abstract = True
    unique_key = "'report:'+<year>"


@app.task(base=Report, unique_conflict="result")
def report(year: int) -> str:
    return f"report of {year}"


@app.task(bind=True, base=Report, unique_conflict="skip", unique_until="start")
def reindex(self: Any, year: int) -> bool:
    return get_lock(NAME).locked()


@pytest.fixture(autouse=True)
def free() -> Iterator[None]:
    """Nothing is queued before a test, nor after it."""
    yield
    holder = locks["default"].holder(locks["default"].key(NAME))
    if holder is not None:
        locks["default"].release(locks["default"].key(NAME), holder.owner)


def run(task: Any, result: AsyncResult[Any]) -> Any:
    """Run a queued task, as a worker that received its message does."""
    return task.apply(args=(2026,), task_id=result.id)


def test_a_second_call_is_given_the_first_ones_result() -> None:
    """While a task is queued, another `delay` returns an AsyncResult of the same task."""
    first = report.delay(2026)
    second = report.delay(2026)
    assert isinstance(second, AsyncResult)
    assert second.id == first.id


def test_a_call_while_the_task_runs_is_given_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is the running task's, and its id is still shown."""
    first, others = report.delay(2026), []
    monkeypatch.setattr(report, "run", lambda year: others.append(elsewhere(lambda: report.delay(year))))
    run(report, first)
    assert [other.id for other in others] == [first.id]


def test_a_redelivered_task_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second delivery has an owner of its own, from which the same id is read."""
    first, others = report.delay(2026), []
    before = locks["default"].holder(locks["default"].key(NAME))
    monkeypatch.setattr(CeleryTask, "redelivered", True)
    monkeypatch.setattr(report, "run", lambda year: others.append(_holder_and_result(year)))
    run(report, first)
    ((holder, other),) = others
    assert before is not None
    assert holder != before.owner
    assert other.id == first.id


def _holder_and_result(year: int) -> tuple[str, Any]:
    holder = locks["default"].holder(locks["default"].key(NAME))
    assert holder is not None
    return holder.owner, elsewhere(lambda: report.delay(year))


def test_after_the_end_a_call_queues_a_new_task() -> None:
    """A task that has ended holds nothing: the next one has an id of its own."""
    first = report.delay(2026)
    run(report, first)
    assert report.delay(2026).id != first.id


def test_a_holder_that_is_no_such_task_has_no_result() -> None:
    """A lock that something else took, or a task with an id of another form: LockNotAcquired."""
    lease = elsewhere(get_lock(NAME, ttl=60).acquire)
    with pytest.raises(LockNotAcquired):
        report.delay(2026)
    elsewhere(lease.release)
    report.apply_async((2026,), task_id="nightly")
    with pytest.raises(LockNotAcquired):
        report.delay(2026)


def test_a_task_may_give_its_place_back_when_it_starts() -> None:
    """With `unique_until="start"` the body runs without the place, and another may be queued meanwhile."""
    first = reindex.delay(2026)
    assert reindex.delay(2026) is None
    assert run(reindex, first).get() is False
    assert reindex.delay(2026) is not None


def test_until_the_end_the_place_is_kept() -> None:
    """The mutant, which doesn't give its place back, runs with it: a change meanwhile would queue nothing."""
    first = reindex.delay(2026)
    with mock.patch.object(QueueSlot, "give_up"):
        assert run(reindex, first).get() is True


def test_a_place_that_cannot_be_given_back_keeps_the_task_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer the body doesn't run: what changes during it might queue nothing."""
    first = reindex.delay(2026)
    monkeypatch.setattr(QueueSlot, "give_up", mock.Mock(side_effect=BackendUnavailable("no answer")))
    monkeypatch.setattr(reindex, "retry", mock.Mock(side_effect=Retry("later")))
    monkeypatch.setattr(reindex, "run", lambda year: pytest.fail("the body ran"))
    assert run(reindex, first).state == "RETRY"


@pytest.mark.parametrize(
    ("option", "value"), [("unique_conflict", "return"), ("unique_until", "finish"), ("unique_until", None)]
)
def test_a_choice_that_there_is_not_is_refused(option: str, value: object) -> None:
    """The error names the option, the value and what it may be."""
    with pytest.raises(ValueError, match=f"{option}={value!r} must be"):
        type("Wrong", (Report,), {option: value, "run": lambda self, year: None, "name": "wrong"})()


@given(task=st.uuids(version=4), attempt=st.integers(0, 2**48 - 1))
def test_the_id_of_a_task_is_read_from_its_owner(task: uuid.UUID, attempt: int) -> None:
    """Every UUID of version 4 comes back whole, whichever acquisition of the task it is."""
    owner = owner_of_work(str(task), attempt)
    assert work_of(owner) == str(task)
    assert is_owner_of(client_of_work(str(task)), owner)


@pytest.mark.parametrize("owner", [
    "", "word", "01234567-89ab-8def-a123-456789abcdef:7", owner_of_work("nightly"), new_owner(),
    new_owner(client_of_work("01234567-89ab-4def-9123-456789abcdef")),
], ids=["nothing", "a word", "version 8", "a name", "a process", "a task's process"])  # fmt: skip
def test_other_owners_name_no_task(owner: str) -> None:
    """Processes, foreign clients, and tasks whose id is something else."""
    assert work_of(owner) is None


def test_an_outage_is_not_taken_for_a_queued_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that says *busy* for want of a connection knows of no task: `skip` would lose this one."""
    outage = BackendUnavailable("no slot left for a connection")
    refused = mock.Mock(return_value=Busy(outage=outage))
    monkeypatch.setattr(type(locks["default"]), "try_acquire", refused)
    with pytest.raises(BackendUnavailable, match="no slot"):
        reindex.delay(2026)


def lose_the_reply(error: BaseException) -> None:
    """Queue a task whose place is taken, though the answer never comes."""
    take = type(locks["default"]).try_acquire

    def unanswered(*args: Any, **options: Any) -> Any:
        take(*args, **options)
        raise error

    with mock.patch.object(type(locks["default"]), "try_acquire", unanswered), pytest.raises(type(error)):
        reindex.delay(2026)


@pytest.mark.parametrize("error", [BackendUnavailable("no answer"), KeyboardInterrupt()])
def test_a_place_of_unknown_outcome_is_given_back(error: BaseException) -> None:
    """The caller heard that nothing was sent: the next call queues the task, and not an hour later."""
    lose_the_reply(error)
    until(lambda: not get_lock(NAME).locked(), 30)
    assert reindex.delay(2026) is not None


def test_mutant_a_place_that_is_never_given_back_skips_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as `unique_for` every call would come to nothing."""
    monkeypatch.setattr(release_retrier, "schedule", mock.Mock())
    lose_the_reply(BackendUnavailable("no answer"))
    assert reindex.delay(2026) is None


def test_a_request_that_was_never_sent_leaves_nothing_to_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection there is no doubt."""
    error, schedule = BackendUnavailable("refused"), mock.Mock()
    error.sent = False
    monkeypatch.setattr(type(locks["default"]), "try_acquire", mock.Mock(side_effect=error))
    monkeypatch.setattr(release_retrier, "schedule", schedule)
    with pytest.raises(BackendUnavailable):
        reindex.delay(2026)
    schedule.assert_not_called()


def test_an_outage_of_both_servers_tells_the_brokers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message was not sent, and the place can't be given back now: that is retried, and masks nothing."""
    answers = [BackendUnavailable("no answer")]
    release = type(locks["default"]).release

    def once_down(*args: Any) -> bool:
        if answers:
            raise answers.pop()
        return release(*args)

    monkeypatch.setattr(type(locks["default"]), "release", once_down)
    with (
        mock.patch.object(DjangoTask, "apply_async", side_effect=ConnectionError("no broker")),
        pytest.raises(ConnectionError, match="no broker"),
    ):
        reindex.delay(2026)
    until(lambda: not get_lock(NAME).locked(), 30)
    assert reindex.delay(2026) is not None


def test_the_same_task_may_be_sent_again() -> None:
    """Another message with its id keeps its place, for the whole time from now on."""
    sent = [reindex.apply_async((2026,), task_id=id_) for id_ in [str(uuid.uuid4())] * 2]
    assert all(sent)
    holder = locks["default"].holder(locks["default"].key(NAME))
    assert holder is not None
    assert holder.remaining is not None
    assert holder.remaining > 3590
