"""`Retry-After` tells when the lock is probably free, not what is left of a lease that is renewed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings

from locking import (
    BackendUnavailable,
    LockLost,
    LockNotAcquired,
    TooManyWaiters,
    conflict_response,
    distributed_lock,
    get_lock,
)
from locking.core import lease as leases
from locking.testing import simulate_contention
from tests.locking.support.helpers import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_holds_so_far(memory_locks: None) -> Iterator[None]:
    leases._USUAL.clear()
    yield
    leases._USUAL.clear()


def refused(view: Callable[..., Any]) -> int:
    """Call a view whose lock another has, and return its Retry-After."""
    response = elsewhere(lambda: view(RequestFactory().get("/")))
    assert response.status_code == 409
    return int(response["Retry-After"])


@distributed_lock(key="'report'", wait=0)
def report(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


def error(**options: Any) -> LockNotAcquired:
    return LockNotAcquired("a", waited=0.0, backend="default", **options)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"retry_after": 29.3}, "5"),
        ({"retry_after": 29.3, "estimate": 0.04}, "1"),
        ({"retry_after": 29.3, "estimate": 11.2}, "12"),
        ({"retry_after": 2.2, "estimate": 11.2}, "3"),
        ({"retry_after": 2.2}, "3"),
        ({}, "5"),
    ],
)
def test_recent_holds_and_the_lease_decide(options: Any, seconds: str) -> None:
    """The usual time of such holds, at most what is left of the lease; 5 s where nothing is known."""
    assert conflict_response(RequestFactory().get("/"), error(**options))["Retry-After"] == seconds


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (error(), 409),
        (LockLost("a"), 409),
        (TooManyWaiters("a", waited=0.0, backend="default"), 503),
        (BackendUnavailable("down"), 503),
    ],
)
def test_any_error_of_a_lock_has_an_answer(refusal: Any, status: int) -> None:
    """For views that take a lock without the decorator."""
    response = conflict_response(RequestFactory().get("/"), refusal)
    assert (response.status_code, int(response["Retry-After"]) > 0) == (status, True)


def test_the_setting_decides_before_the_estimate(settings: Any) -> None:
    """`RETRY_AFTER` of the alias is what a refusal says."""
    entry = {**settings.LOCKING["default"], "RETRY_AFTER": 2}
    with override_settings(LOCKING={"default": entry}):
        answer = conflict_response(RequestFactory().get("/"), error(retry_after=29.0, estimate=11.0))
    assert answer["Retry-After"] == "2"


def test_a_renewed_lease_of_30_seconds_is_no_reason_to_wait_so_long() -> None:
    """A process that has run the view before knows that its body takes milliseconds."""
    report(RequestFactory().get("/"))
    with get_lock("report"):
        assert refused(report) == 1


def test_what_is_left_to_its_ttl_is_reported_exactly() -> None:
    """With `release=False` the lease ends the hold, whatever the body took."""

    @distributed_lock(key="'submit'", wait=0, release=False, ttl=40)
    def submit(request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")

    assert submit(RequestFactory().get("/")).status_code == 200
    assert 35 <= refused(submit) <= 40


def test_a_minimal_hold_counts_until_others_may_have_the_lock() -> None:
    """The body was quick, and the lock is kept for a minute all the same."""

    with get_lock("beat", min_hold=60, template="beat"):
        pass
    assert 55 < (leases.usual_hold("default", "beat") or 0.0) < 61


def test_an_error_keeps_its_estimate_in_another_process() -> None:
    """Celery sends errors between processes."""
    import pickle

    again = pickle.loads(pickle.dumps(error(retry_after=3.0, estimate=0.5)))  # noqa: S301
    assert (type(again), again.retry_after, again.estimate) == (LockNotAcquired, 3.0, 0.5)
    many = pickle.loads(pickle.dumps(TooManyWaiters("a", waited=0.0, backend="b")))  # noqa: S301
    assert type(many) is TooManyWaiters


def test_groups_beyond_the_limit_count_for_their_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that were given as templates by mistake fill no memory."""
    monkeypatch.setattr(leases, "MOST_GROUPS", 1)
    leases.note_hold("default", "a", 1.0)
    leases.note_hold("default", "b", 3.0)
    assert leases.usual_hold("default", "b") is None
    assert leases.usual_hold("default", None) == 3.0


def test_contention_in_a_test_answers_as_a_real_one(client: Any) -> None:
    """`simulate_contention` names a rival whose lease is known."""
    with simulate_contention("report"):
        assert refused(report) == 1
