"""Waiting: woken by a release, ended by the wait, first come first served where the backend says so."""

from __future__ import annotations

import time
from functools import partial

import pytest

from locking.backends.base import BaseLockBackend
from locking.core.lock import get_lock
from locking.exceptions import LockNotAcquired
from locking.testing.contract.base import ContractBase, begin, counted_waiters, elsewhere, until
from locking.utils.clock import now

FAR = 60.0
"""Seconds of a lease that surely doesn't end during a test: a waiter that gets the lock was given it."""


class WaitingContract(ContractBase):
    """Threads that wait for one another."""

    def test_a_wait_of_zero_never_blocks(self, backend: BaseLockBackend, name: str) -> None:
        """With `wait=0` a busy lock is refused at once: the caller neither sleeps nor enters a queue."""
        with get_lock(name, ttl=FAR), counted_waiters(backend) as waiters:
            begun = now()
            assert elsewhere(get_lock(name, ttl=FAR).try_acquire) is None
            with pytest.raises(LockNotAcquired):
                elsewhere(lambda: get_lock(name, ttl=FAR, wait=0).acquire())
            assert now() - begun < self.patience
            assert waiters.number() == 0
        assert not get_lock(name).locked()

    def test_a_release_wakes_a_waiter(self, backend: BaseLockBackend, name: str) -> None:
        """A waiter gets the lock when it is released, long before the lease would have ended."""
        with counted_waiters(backend) as waiters:
            with get_lock(name, ttl=FAR):
                waiter = begin(get_lock(name, ttl=FAR, wait=FAR).acquire)
                until(waiters.number, self.patience)
                assert not waiter.done()
            lease = waiter.result(timeout=self.patience)
        lease.ensure_held()
        lease.release()

    def test_a_waiter_times_out(self, name: str) -> None:
        """When the wait is over LockNotAcquired says how long it was; the lock stays the holder's."""
        with get_lock(name, ttl=FAR) as lease:
            with pytest.raises(LockNotAcquired) as caught:
                elsewhere(lambda: get_lock(name, wait=0.2).acquire())
            lease.ensure_held()
        assert 0.2 <= caught.value.waited < 0.2 + self.patience
        assert isinstance(caught.value, TimeoutError)

    def test_a_waiter_that_gave_up_leaves_no_pending_release(
        self, backend: BaseLockBackend, name: str
    ) -> None:
        """The lock isn't given to someone who no longer waits."""
        with get_lock(name, ttl=FAR):
            for _ in range(3):
                with pytest.raises(LockNotAcquired):
                    elsewhere(lambda: get_lock(name, ttl=FAR, wait=0.05).acquire())
        assert backend.holder(backend.key(name)) is None
        lease = get_lock(name, ttl=FAR).try_acquire()
        assert lease is not None
        lease.release()

    def test_every_waiter_gets_its_turn(self, backend: BaseLockBackend, name: str) -> None:
        """All waiters are served; in the order they came where `supports_fairness` is on."""
        turns: list[int] = []

        def enqueue(number: int) -> None:
            with get_lock(name, ttl=FAR, wait=FAR):
                turns.append(number)

        with counted_waiters(backend) as waiters:
            with get_lock(name, ttl=FAR):
                crowd = []
                for number in range(5):
                    crowd.append(begin(partial(enqueue, number)))
                    until(partial(waiters.are, number + 1), self.patience)
            for waiter in crowd:
                waiter.result(timeout=self.patience)
        assert sorted(turns) == [0, 1, 2, 3, 4]
        if backend.supports_fairness:
            assert turns == [0, 1, 2, 3, 4]

    def test_a_newcomer_does_not_jump_the_queue(self, backend: BaseLockBackend, name: str) -> None:
        """Where `supports_fairness` is on, a releaser that asks again at once finds the waiter served."""
        with counted_waiters(backend) as waiters:
            with get_lock(name, ttl=FAR):
                waiter = begin(get_lock(name, ttl=FAR, wait=FAR).acquire)
                until(waiters.number, self.patience)
            again = get_lock(name, ttl=FAR).try_acquire()
            if again is not None:
                assert not backend.supports_fairness
                again.release()
            waiter.result(timeout=self.patience).release()

    def test_a_waiter_takes_over_when_the_lease_ends(self, backend: BaseLockBackend, name: str) -> None:
        """A dead holder's lock isn't released, and its waiter has it all the same once the lease ends."""
        abandoned = get_lock(name, ttl=self.shortest_ttl).acquire()
        lease = elsewhere(lambda: get_lock(name, ttl=FAR, wait=FAR).acquire())
        assert abandoned.remaining() == 0.0
        lease.release()

    def test_a_shortened_lease_does_not_keep_waiters_longer(
        self, backend: BaseLockBackend, name: str
    ) -> None:
        """A waiter that knew of a long lease learns that it has been cut short."""
        lease = get_lock(name, ttl=FAR).acquire()
        with counted_waiters(backend) as waiters:
            waiter = begin(get_lock(name, ttl=FAR, wait=FAR).acquire)
            until(waiters.number, self.patience)
            assert backend.shorten(lease.key, lease.owner, self.shortest_ttl)
            waiter.result(timeout=self.patience).release()

    def test_min_hold_does_not_keep_waiters_longer(self, backend: BaseLockBackend, name: str) -> None:
        """A waiter for a lock with `min_hold` has it when that time is over, not after the ttl."""
        with counted_waiters(backend) as waiters:
            with get_lock(name, ttl=FAR, min_hold=self.shortest_ttl):
                waiter = begin(get_lock(name, ttl=FAR, wait=FAR).acquire)
                until(waiters.number, self.patience)
            waiter.result(timeout=self.patience).release()

    def test_hammer_of_threads(self, name: str) -> None:
        """Threads that read, sleep and write under the lock lose no count."""
        count = 0

        def bump() -> None:
            nonlocal count
            for _ in range(10):
                with get_lock(name, ttl=FAR, wait=FAR):
                    seen = count
                    time.sleep(0.0005)  # between reading and writing: room for an intruder
                    count = seen + 1

        for worker in [begin(bump) for _ in range(5)]:
            worker.result(timeout=60)
        assert count == 50
