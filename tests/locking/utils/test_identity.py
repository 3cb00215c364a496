"""Who asks: owners, threads and tasks."""

import asyncio
import pickle
import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locking import LockError, LockKeyError, LockNotAcquired
from locking.testing.contract.processes import child
from locking.utils.clock import exponential, jittered, now
from locking.utils.ownership import current_context, new_owner


def test_owners_are_never_used_twice():
    """Each acquisition has an owner of its own, `uuid:number`, of one UUID of version 8 a process."""
    owners = {new_owner() for _ in range(1000)}
    assert len(owners) == 1000
    (identity,) = {owner.rsplit(":", 1)[0] for owner in owners}
    assert uuid.UUID(identity).version == 8
    assert uuid.UUID(identity).variant == uuid.RFC_4122


def test_a_forked_child_has_an_identity_of_its_own():
    """It can never pass for its parent."""

    def work(pipe):
        pipe.send(new_owner())

    with child(work) as forked:
        assert forked.report().rsplit(":", 1)[0] != new_owner().rsplit(":", 1)[0]


def test_the_context_is_the_task_or_else_the_thread():
    """Tasks differ from each other and from their thread."""

    async def scenario():
        mine = current_context()
        assert mine is asyncio.current_task()
        assert await asyncio.create_task(_context()) is not mine
        assert await asyncio.to_thread(current_context) is not mine

    async def _context():
        return current_context()

    assert current_context() is threading.current_thread()
    asyncio.run(scenario())


def test_a_loops_callback_has_its_thread_as_context():
    """Code that runs in the loop but in no task has the thread."""

    async def scenario():
        seen = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: seen.set_result(current_context()))
        assert await seen is threading.current_thread()

    asyncio.run(scenario())


def test_the_clock_goes_on_in_all_processes_alike():
    """Two processes read one clock."""
    before = now()

    def work(pipe):
        pipe.send(now())

    with child(work) as forked:
        assert before <= forked.report() <= now()


def test_refusals_survive_pickling():
    """Celery sends exceptions between processes."""
    error = LockNotAcquired("a", waited=1.5, backend="default", holder="b:1", retry_after=2.0)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert vars(copy) == vars(error)
    assert str(copy) == (
        "lock 'a' on backend 'default' not acquired after 1.500 s; held by b:1, whose lease ends in 2.000 s"
    )


def test_errors_are_what_callers_expect_of_them():
    """A refusal is a TimeoutError, a bad name a ValueError, and both are LockErrors."""
    assert issubclass(LockNotAcquired, TimeoutError)
    assert issubclass(LockKeyError, ValueError)
    assert issubclass(LockNotAcquired, LockError)


@given(st.integers(0, 10_000))
def test_pauses_grow_to_a_cap_and_are_at_least_half(attempt):
    """Each pause is between half of the exponential one and all of it."""
    assert exponential(attempt) <= exponential(attempt + 1) <= 0.25
    assert exponential(attempt) / 2 <= jittered(attempt) <= exponential(attempt)


@pytest.mark.parametrize(("attempt", "pause"), [(0, 0.005), (1, 0.01), (5, 0.16), (6, 0.25), (9, 0.25)])
def test_pauses_double(attempt, pause):
    """From 5 ms to a quarter of a second."""
    assert exponential(attempt) == pause
