"""A cap on the waiters of a process: `MAX_WAITERS`."""

import asyncio
import contextlib
import sys
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings

import locking
from locking import LockNotAcquired, TooManyWaiters, distributed_lock
from locking.backends.base import Busy
from locking.core import lock as lock_module
from locking.core import waits
from locking.core.handler import locks
from locking.core.lock import SingleLock
from locking.testing import override_locks
from locking.testing.contract.base import begin
from locking.utils.clock import now
from tests.lock_fixtures import TurnedClock
from tests.locking.backends.redis.topologies.servers import until
from tests.locking.support.helpers import elsewhere

MOST = 2
CAPPED = "capped"

get_lock = partial(locking.get_lock, backend=CAPPED)


@pytest.fixture(autouse=True)
def _capped(settings: Any) -> Any:
    """Locks in memory, for which at most two callers of this process wait; no other test uses this alias."""
    default = settings.LOCKING["default"]
    settings.LOCKING = {"default": default, CAPPED: {**default, "MAX_WAITERS": MOST}}
    with override_locks():
        yield


def waiting() -> int:
    return waits.waiters._waiting[CAPPED]


def test_one_waiter_too_many_is_refused_at_once() -> None:
    """The third waiter doesn't wait its 60 seconds; the two before it are served, and then there is room."""
    with get_lock("a"):
        first = [begin(lambda: get_lock("a", wait=60).acquire().release()) for _ in range(MOST)]
        until(lambda: waiting() == MOST, "both wait")
        with pytest.raises(
            TooManyWaiters, match=r"2 waiters in this process already \(MAX_WAITERS\)"
        ) as caught:
            elsewhere(lambda: get_lock("a", wait=60).acquire())
    for each in first:
        each.result(timeout=20)
    assert caught.value.waited < 30
    assert waiting() == 0
    with get_lock("a"), pytest.raises(LockNotAcquired) as refused:
        elsewhere(lambda: get_lock("a", wait=0.01).acquire())
    assert type(refused.value) is LockNotAcquired


def test_a_wait_ends_by_the_clock(turned_clock: TurnedClock) -> None:
    """As soon as its seconds are over, whatever is left of the holder's lease, the waiter gives up."""
    lock, busy, begun = get_lock("a"), Busy(retry_after=60.0), now()
    assert isinstance(lock, SingleLock)
    assert 0 < lock._pause(busy, begun, 5.0) <= 5.0
    turned_clock.advance(5.0)
    with pytest.raises(LockNotAcquired):
        lock._pause(busy, begun, 5.0)


def test_mutant_a_cap_that_is_not_looked_at_lets_everyone_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One waiter more than there may be waits its time out, in vain."""
    enter = waits.waiters.enter
    monkeypatch.setattr(waits.waiters, "enter", lambda alias, most: enter(alias, None))
    with get_lock("a"):
        first = [begin(lambda: get_lock("a", wait=60).acquire().release()) for _ in range(MOST)]
        until(lambda: waiting() == MOST, "both wait")
        with pytest.raises(LockNotAcquired) as refused:
            elsewhere(lambda: get_lock("a", wait=0.01).acquire())
    for each in first:
        each.result(timeout=20)
    assert type(refused.value) is LockNotAcquired


def test_who_was_refused_has_left_the_queue() -> None:
    """It would be handed the lock otherwise, unnoticed."""
    with get_lock("a"):
        first = [begin(lambda: get_lock("a", wait=60).acquire().release()) for _ in range(MOST)]
        until(lambda: waiting() == MOST, "both wait")
        with pytest.raises(TooManyWaiters):
            elsewhere(lambda: get_lock("a", wait=60).acquire())
    for each in first:
        each.result(timeout=20)
    assert locks[CAPPED].holder(locks[CAPPED].key("a")) is None


class Interrupt(BaseException):
    """What a signal's handler raises."""


FILES = (lock_module.__file__, waits.__file__, contextlib.__file__)


def acquire_interrupted_at(step: int) -> None:
    """Wait for the lock; raise at this step between the count of the waiter and its first sleep."""
    steps = count()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_name == "wait":
            sys.settrace(None)
        elif frame.f_code.co_filename in FILES and frame.f_code.co_name not in ("enter", "leave"):
            if event in ("line", "return") and waiting() and next(steps) == step:
                sys.settrace(None)
                raise Interrupt
            return trace
        return None

    sys.settrace(trace)
    try:
        get_lock("a", wait=0.01).acquire()
    finally:
        sys.settrace(None)


def test_a_signals_handler_that_raises_leaves_no_waiter_counted() -> None:
    """At whichever step of a beginning wait, and while the traceback is kept."""
    with get_lock("a"):
        for step in count():
            with pytest.raises((Interrupt, LockNotAcquired)) as caught:
                elsewhere(lambda: acquire_interrupted_at(step))  # noqa: B023 called at once
            assert waiting() == 0
            if caught.type is LockNotAcquired:
                break
    assert step > 5


def test_a_free_lock_and_a_caller_that_does_not_wait_are_not_counted() -> None:
    """The cap is on waiting only."""
    waits.waiters.enter(CAPPED, None)
    waits.waiters.enter(CAPPED, None)
    try:
        with get_lock("a"):
            assert elsewhere(get_lock("a").try_acquire) is None
        get_lock("b").acquire().release()
    finally:
        waits.waiters.leave(CAPPED)
        waits.waiters.leave(CAPPED)


async def test_tasks_are_counted_as_well() -> None:
    """One number for the threads and tasks of a process."""
    async with get_lock("a"):
        first = [asyncio.create_task(take()) for _ in range(MOST)]
        while waiting() < MOST:
            await asyncio.sleep(0)
        with pytest.raises(TooManyWaiters):
            await asyncio.create_task(take())
    await asyncio.gather(*first)


async def take() -> None:
    async with get_lock("a", wait=60):
        pass


@pytest.mark.django_db(transaction=True)
def test_a_view_answers_503() -> None:
    """Not the visitor's conflict but the site's overload: 503, and when to come back."""

    @distributed_lock(key="'a'", wait=60, backend=CAPPED)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")

    waits.waiters.enter(CAPPED, None)
    waits.waiters.enter(CAPPED, None)
    try:
        with get_lock("a"):
            response = elsewhere(lambda: view(RequestFactory().get("/")))
    finally:
        waits.waiters.leave(CAPPED)
        waits.waiters.leave(CAPPED)
    assert response.status_code == 503
    assert int(response["Retry-After"]) >= 1


@pytest.mark.parametrize("most", [0, -1, True, "5", 1.5])
def test_a_cap_that_cannot_be_is_refused(most: Any) -> None:
    """When the setting is read."""
    entry = {"BACKEND": "locking.backends.memory.MemoryBackend", "MAX_WAITERS": most}
    refusal = pytest.raises(ImproperlyConfigured, match="MAX_WAITERS must be a whole number above 0")
    with override_settings(LOCKING={"default": entry}), refusal:
        locking.get_lock("a")
