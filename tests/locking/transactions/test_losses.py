"""What a decorated function does when its lock was lost and its transaction was rolled back."""

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery, Task
from celery.exceptions import Retry
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings

from locking import BackendUnavailable, LockLost, current_lease, distributed_lock
from locking.core.handler import locks
from locking.testing import simulate_loss
from locking.transactions import decorator
from locking.transactions.fence import forbid
from tests.locking.support.helpers import committed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory_locks")]

app = Celery("tests-on-loss", broker="memory://", set_as_current=False)


def try_later(error: Exception, *args: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse(type(error).__name__, status=202)


def losing_view(**options: Any) -> Callable[[HttpRequest], HttpResponse]:
    @distributed_lock(key="'shop'", **options)
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="lost")
        simulate_loss("shop")
        return HttpResponse(status=201)

    found: Callable[[HttpRequest], HttpResponse] = view
    return found


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 409),
        ({"retries": 2}, 409),
        ({"on_conflict": "skip"}, 409),
        ({"on_conflict": "raise"}, None),
        ({"on_conflict": try_later}, None),
    ],
    ids=lambda given: re.sub(r"<function (\w+) at \w+>", r"\1", str(given)),  # the same in every process
)
def test_what_a_view_does_that_lost_its_lock(rf: RequestFactory, options: Any, status: int | None) -> None:
    """It answers, or raises where the project answers itself; in any case it has stored nothing."""
    view = losing_view(**options)
    if status is None:
        with pytest.raises(LockLost):
            view(rf.get("/"))
    else:
        assert view(rf.get("/")).status_code == status
    assert committed() == []


def test_a_holder_that_the_fence_refused_has_lost_its_lock_as_well(rf: RequestFactory) -> None:
    """A later holder came first: the view answers as to a loss."""

    @distributed_lock(key="'shop'", fenced=True)
    def view(request: HttpRequest) -> HttpResponse:
        return pytest.fail("the body ran behind a later holder")

    forbid("shop", 2**62)
    assert view(rf.get("/")).status_code == 409


def selling_inside_another_transaction(request: HttpRequest) -> None:
    """Call a view that loses its lock, in a transaction that has written."""
    ignoring = {"default": {**settings.LOCKING["default"], "ON_OPEN_TRANSACTION": "ignore"}}
    with override_settings(LOCKING=ignoring), transaction.atomic():
        Group.objects.create(name="outer")
        losing_view()(request)


def test_inside_another_transaction_the_error_is_raised(rf: RequestFactory) -> None:
    """The outer one has to be rolled back, too; an answer would let it commit."""
    with pytest.raises(LockLost):
        selling_inside_another_transaction(rf.get("/"))
    assert committed() == []


def test_mutant_an_answer_inside_another_transaction_commits_it(
    rf: RequestFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the look at open transactions the outer one commits what it did under a lost lock."""
    monkeypatch.setattr(decorator, "connections_in_transaction", list)
    selling_inside_another_transaction(rf.get("/"))
    assert "outer" in committed()


def test_what_has_committed_is_not_denied(rf: RequestFactory) -> None:
    """An error of an on_commit hook comes through as it is."""

    def fail() -> None:
        raise LockLost("shop")

    @distributed_lock(key="'shop'")
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="sold")
        transaction.on_commit(fail)
        return HttpResponse()

    with pytest.raises(LockLost):
        view(rf.get("/"))
    assert committed() == ["sold"]


@pytest.fixture
def retried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Why tasks were sent back to their queue."""
    reasons: list[Any] = []

    def retry(task: Task, **options: Any) -> Retry:
        reasons.append(options["exc"])
        return Retry("again", exc=options["exc"], when=options["countdown"])

    monkeypatch.setattr(Task, "retry", retry)
    return reasons


def task_that(body: Callable[[], None]) -> Any:
    """Return a task that writes a row under its lock, then does this."""

    @app.task(name=f"task-{body.__name__}")
    @distributed_lock(key="'shop'")
    def task() -> None:
        Group.objects.create(name="lost")
        body()

    return task


def test_a_task_that_lost_its_lock_fails(retried: list[Any]) -> None:
    """Whether its work may be done again is the project's to say, by `autoretry_for`."""
    assert task_that(lambda: simulate_loss("shop")).apply().state == "FAILURE"
    assert retried == committed() == []


def fall_silent() -> None:
    """Have the backend answer nothing more to the holder of this lock."""
    (lease,) = current_lease().leases
    lease.backend.extend = Mock(side_effect=BackendUnavailable("no answer"))  # type: ignore[method-assign]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a test replaces put back."""
    monkeypatch.setattr(locks["default"], "extend", locks["default"].extend)


@pytest.mark.usefixtures("restored")
def test_a_task_whose_backend_is_silent_at_its_commit_is_retried(retried: list[Any]) -> None:
    """Whether the lock is held is unknown: rolled back, and tried again as at an acquisition."""
    assert task_that(fall_silent).apply().state == "RETRY"
    assert [type(reason) for reason in retried] == [BackendUnavailable]
    assert committed() == []


def raise_an_outage() -> None:
    raise BackendUnavailable("the body's own")


def test_an_outage_that_the_body_raises_is_its_own(retried: list[Any]) -> None:
    """What the body asked of some other server fails the task, as any error does."""
    assert task_that(raise_an_outage).apply().state == "FAILURE"
    assert retried == committed() == []
