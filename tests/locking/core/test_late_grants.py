"""A grant that arrives after its lease has ended: the process was paused, or the answer took too long."""

import asyncio

import pytest

from locking import BackendUnavailable, get_lock
from locking.backends.memory import Locks
from locking.core.handler import locks
from locking.core.lease import State
from locking.testing import held_locks
from locking.testing.contract.base import begin, counted_waiters, until

pytestmark = pytest.mark.usefixtures("memory_locks")
PATIENCE = 30.0
TTL = 10.0
TOO_LONG = TTL + 1


class LateGrants:
    """Delays what the engine answers; counts the delays."""

    def __init__(self, monkeypatch, turned_clock):
        self.monkeypatch, self.clock, self.delays, self.left = monkeypatch, turned_clock, 0, 0
        monkeypatch.setattr(Locks, "_grant", self._delaying(Locks._grant))

    def delay(self, times):
        """Delay the next `times` grants by more than their ttl."""
        self.left = times

    def _delaying(self, step):
        def delayed(*args, **kwargs):
            outcome = step(*args, **kwargs)
            if self.left:
                self.left -= 1
                self.delays += 1
                self.clock.advance(TOO_LONG)
            return outcome

        return delayed


@pytest.fixture
def grants(monkeypatch, turned_clock):
    """The grants of the locks in memory, for the test to delay."""
    return LateGrants(monkeypatch, turned_clock)


def enter(lock):
    """Enter the lock's block; return what is left of the lease at its beginning."""
    with lock as lease:
        return lease.state, lease.remaining()


async def aenter(lock):
    """`enter` for asyncio."""
    async with lock as lease:
        return lease.state, lease.remaining()


ENTER = [enter, lambda lock: asyncio.run(aenter(lock))]


@pytest.mark.parametrize("enter", ENTER)
def test_a_block_is_not_entered_under_a_lease_that_has_ended(grants, enter):
    """The lease was over when the grant arrived: the lock is acquired again, for a whole ttl."""
    grants.delay(1)
    state, left = enter(get_lock("a", ttl=TTL, wait=60))
    assert (state, grants.delays) == (State.HELD, 1)
    assert left > TTL / 2
    assert held_locks() == []


@pytest.mark.parametrize("enter", ENTER)
def test_a_wait_that_ran_out_on_late_grants_is_an_outage(grants, enter):
    """No other caller has the lock, so it is not refused: no answer came in time. Nothing is left locked."""
    grants.delay(1)
    with pytest.raises(
        BackendUnavailable, match=r"(1[1-9]|[2-9]\d|\d{3,})\.\d+ s after the request.*ttl of 10 s"
    ):
        enter(get_lock("a", ttl=TTL, wait=0))
    assert not get_lock("a").locked()


@pytest.mark.parametrize("enter", ENTER)
def test_a_waiter_that_was_paused_does_not_enter_under_an_old_handoff(grants, enter):
    """The lock is handed to a waiter, which reads that only after the lease has ended."""
    lock = get_lock("a", ttl=TTL, wait=600)
    holder = get_lock("a", ttl=600).acquire()
    with counted_waiters(locks["default"]) as waiters:
        waiter = begin(lambda: enter(lock))
        until(waiters.number, PATIENCE)
        grants.delay(1)
        holder.release()
        state, left = waiter.result(timeout=PATIENCE)
    assert (state, grants.delays) == (State.HELD, 1)
    assert left > TTL / 2
