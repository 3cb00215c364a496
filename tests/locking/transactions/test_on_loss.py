"""`on_loss`: what a decorated function does when its lock was lost and its transaction was rolled back."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import Retry
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from locking import LockLost, LockTransactionError, StaleFencingToken, distributed_lock
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
        ({"on_conflict": "skip"}, 409),
        ({"on_loss": "auto"}, 409),
        ({"on_loss": "auto", "on_conflict": "raise"}, 409),
        ({"on_loss": try_later}, 202),
        ({"on_loss": try_later, "retries": 2}, 202),
        ({"on_loss": try_later, "on_conflict": "raise"}, 202),
        ({"on_loss": "raise"}, None),
        ({"on_conflict": "raise"}, None),
        ({"on_conflict": try_later}, None),
    ],
    ids=lambda given: re.sub(r"<function (\w+) at \w+>", r"\1", str(given)),  # the same in every process
)
def test_what_a_view_does_that_lost_its_lock(rf: RequestFactory, options: Any, status: int | None) -> None:
    """It answers or raises as on_loss says, or else by its on_conflict; in any case it has stored nothing."""
    view = losing_view(**options)
    if status is None:
        with pytest.raises(LockLost):
            view(rf.get("/"))
    else:
        assert view(rf.get("/")).status_code == status
    assert committed() == []


def test_the_answer_to_a_loss_says_the_message(rf: RequestFactory) -> None:
    """`message` replaces the standard sentence here as on a conflict."""
    assert "Please confirm" in losing_view(message="Please confirm")(rf.get("/")).content.decode()


def test_a_callable_gets_the_error_and_the_call() -> None:
    """Its result is the function's, and it runs after the rollback."""
    told: list[Any] = []

    def answer(error: LockLost, order_id: int, *, note: str) -> str:
        told.extend([type(error), order_id, note, committed(), transaction.get_connection().in_atomic_block])
        return "later"

    @distributed_lock(key="'order:'+<order_id>", on_loss=answer)
    def pay(order_id: int, *, note: str) -> str:
        Group.objects.create(name="paid")
        simulate_loss(f"order:{order_id}")
        return "paid"

    assert pay(7, note="x") == "later"
    assert told == [LockLost, 7, "x", [], False]


def test_a_holder_that_the_fence_refused_has_lost_its_lock_as_well() -> None:
    """A later holder came first: the callable gets StaleFencingToken."""

    @distributed_lock(key="'shop'", fenced=True, on_loss=lambda error: type(error))
    def work() -> None:
        pytest.fail("the body ran behind a later holder")

    forbid("shop", 2**62)
    assert work() is StaleFencingToken


def test_inside_another_transaction_the_error_is_raised() -> None:
    """The outer one has to be rolled back, too; a callable that answers would let it commit."""

    @distributed_lock(key="'shop'", on_loss=lambda error: "later", on_open_transaction="ignore")
    def inner() -> None:
        simulate_loss("shop")

    def outer() -> None:
        with transaction.atomic():
            Group.objects.create(name="outer")
            inner()

    with pytest.raises(LockLost):
        outer()
    assert committed() == []


def test_mutant_an_answer_inside_another_transaction_commits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at open transactions the outer one commits what it did under a lost lock."""
    monkeypatch.setattr(decorator, "connections_in_transaction", list)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_inside_another_transaction_the_error_is_raised()
    assert committed() == ["outer"]


def test_what_has_committed_is_not_denied() -> None:
    """An error of an on_commit hook comes through as it is, whatever on_loss says."""

    def fail() -> None:
        raise LockLost("shop")

    @distributed_lock(key="'shop'", on_loss=lambda error: "nothing was stored")
    def work() -> None:
        Group.objects.create(name="sold")
        transaction.on_commit(fail)

    with pytest.raises(LockLost):
        work()
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


@pytest.mark.parametrize(("options", "state"), [({}, "FAILURE"), ({"on_loss": "auto"}, "RETRY")])
def test_a_task_that_lost_its_lock_is_retried_where_it_says_so(
    retried: list[Any], options: Any, state: str
) -> None:
    """on_loss="auto" sends it back to its queue; by default it fails with LockLost."""

    @app.task(name=f"losing-{state}")
    @distributed_lock(key="'shop'", **options)
    def task() -> None:
        Group.objects.create(name="lost")
        simulate_loss("shop")

    assert task.apply().state == state
    assert [type(reason) for reason in retried] == ([LockLost] if state == "RETRY" else [])
    assert committed() == []


@pytest.mark.parametrize("policy", ["skip", "retry", 5])
def test_an_unknown_policy_is_refused(policy: Any) -> None:
    """`skip` is none: work that was rolled back must not pass for done."""
    with pytest.raises(ValueError, match=r"on_loss=.* must be 'auto', 'raise' or a callable"):
        distributed_lock(key="'a'", on_loss=policy)


def test_without_a_transaction_nothing_is_rolled_back_and_so_nothing_answered() -> None:
    """atomic=False and async functions may raise only; anything else is refused at decoration."""

    async def function() -> None: ...

    with pytest.raises(ValueError, match="rolls nothing back"):
        distributed_lock(key="'a'", atomic=False, on_loss="auto")
    with pytest.raises(LockTransactionError, match="on_loss="):
        distributed_lock(key="'a'", on_loss=lambda error: None)(function)
    distributed_lock(key="'a'", atomic=False, on_loss="raise")
    distributed_lock(key="'a'", on_loss="raise")(function)
