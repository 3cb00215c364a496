"""A grant that arrives after its lease has ended: the process was paused, or the answer took too long."""

import asyncio

import pytest

from locking import BackendUnavailable, get_lock
from locking.backends.memory.backend import Locks
from locking.core.handler import locks
from locking.core.lease import State
from locking.core.lock import SingleLock
from locking.testing import held_locks
from locking.testing.contract.base import begin, counted_waiters, elsewhere, until

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
def test_a_late_grant_that_still_holds_is_kept(grants, enter, monkeypatch):
    """The engine's lease outlives the local one: the hold is extended, and its token stays."""
    grants.delay(1)
    monkeypatch.setattr(Locks, "_live", lambda locks, key: locks._holds.get(key, []))
    state, left = enter(get_lock("a", ttl=TTL, wait=0))
    assert (state, grants.delays) == (State.HELD, 1)
    assert left > TTL / 2


@pytest.mark.parametrize("enter", ENTER)
def test_an_extension_that_is_late_as_well_does_not_count(grants, enter, monkeypatch):
    """The answer to the extension takes longer than the ttl again: the lock is acquired again."""
    grants.delay(1)
    extend = Locks.extend

    def delayed(locks, key, owner, ttl, kind="lock"):
        monkeypatch.setattr(Locks, "extend", extend)
        grants.clock.advance(TOO_LONG)
        return True

    monkeypatch.setattr(Locks, "extend", delayed)
    state, left = enter(get_lock("a", ttl=TTL, wait=60))
    assert (state, grants.delays) == (State.HELD, 1)
    assert left > TTL / 2


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


def test_mutant_without_the_rule_a_lease_that_has_ended_is_returned(grants, monkeypatch):
    """The caller goes on as the holder, and so does the next one."""
    monkeypatch.setattr(SingleLock, "_kept", lambda lock, grant, since, held: grant)
    grants.delay(1)
    first = get_lock("a", ttl=TTL).acquire()
    second = elsewhere(lambda: get_lock("a", ttl=TTL).acquire(wait=0))
    assert (first.state, second.state) == (State.LOST, State.HELD)
