"""Taking, holding, prolonging and letting go."""

from __future__ import annotations

import pytest

from locking.backends.base import BaseLockBackend, Busy, Grant
from locking.core.lease import State
from locking.core.lock import get_lock
from locking.exceptions import LockNotAcquired
from locking.testing.contract.base import ContractBase, at_leisure, elsewhere, until
from locking.utils.clock import now
from locking.utils.ownership import new_owner


class HoldingContract(ContractBase):
    """One holder at a time, for at most a ttl."""

    def test_a_free_lock_is_taken_at_once(self, name: str) -> None:
        """A free lock is granted, and its lease says what was asked for."""
        lease = get_lock(name, ttl=30).try_acquire()
        assert lease is not None
        assert lease.state is State.HELD
        assert lease.names == (name,)
        assert 0 < lease.remaining() <= 30
        lease.release()

    def test_a_held_lock_refuses_others(self, name: str) -> None:
        """A held lock is refused to every other caller, and the refusal names lock and backend."""
        with get_lock(name, ttl=30):
            assert elsewhere(get_lock(name).try_acquire) is None
            with pytest.raises(LockNotAcquired) as caught:
                elsewhere(lambda: get_lock(name).acquire(wait=0))
        assert (caught.value.name, caught.value.backend) == (name, "default")
        assert caught.value.retry_after is None or 0 < caught.value.retry_after <= 30

    def test_a_released_lock_is_free(self, name: str) -> None:
        """After the release the next one gets the lock."""
        with get_lock(name, ttl=30):
            pass
        lease = elsewhere(get_lock(name, ttl=30).try_acquire)
        assert lease is not None
        lease.release()

    def test_names_are_independent(self, name: str) -> None:
        """Holding one name doesn't keep others from another name."""
        with get_lock(name, ttl=30):
            lease = elsewhere(get_lock(f"{name}:other", ttl=30).try_acquire)
        assert lease is not None
        lease.release()

    def test_prefix_of_a_name_is_independent(self, name: str) -> None:
        """A name that begins like another is another."""
        with get_lock(f"{name}1", ttl=30):
            assert not get_lock(name).locked()

    def test_a_lease_ends_by_itself(self, name: str) -> None:
        """Without a release the lock is free when its ttl is over, and not a moment before."""
        lease = get_lock(name, ttl=self.shortest_ttl).acquire()
        began = now() - self.shortest_ttl + lease.remaining()
        successor = elsewhere(lambda: get_lock(name, ttl=30).acquire(wait=self.patience))
        assert now() - began >= self.shortest_ttl * 0.98
        assert lease.state is State.LOST
        successor.release()

    def test_locked_owned_and_remaining_tell_the_truth(self, name: str) -> None:
        """`locked` speaks of anyone, `owned` and `remaining` of the asker."""
        lock, seen_by_another = get_lock(name, ttl=30), get_lock(name)
        assert (lock.locked(), lock.owned(), lock.remaining()) == (False, False, 0.0)
        asked = now()
        with lock:
            assert lock.locked()
            assert lock.owned()
            assert (asked + 30 - now()) * 0.98 < lock.remaining() <= 30
            assert elsewhere(lambda: (seen_by_another.locked(), seen_by_another.owned())) == (True, False)
        assert (lock.locked(), lock.owned(), lock.remaining()) == (False, False, 0.0)

    def test_the_holder_is_known_by_its_owner(self, backend: BaseLockBackend, name: str) -> None:
        """`holder` tells the owner and what is left, and None for a free lock."""
        key, owner = backend.key(name), new_owner()
        assert backend.holder(key) is None
        asked = now()
        assert isinstance(backend.try_acquire(key, owner, 30.0), Grant)
        holder = backend.holder(key)
        assert holder is not None
        assert holder.owner == owner
        assert holder.remaining is None or asked + 30 - now() - 1 < holder.remaining <= 30
        assert backend.release(key, owner)
        assert backend.holder(key) is None

    def test_a_repeated_request_of_the_holder_is_granted_again(
        self, backend: BaseLockBackend, name: str
    ) -> None:
        """An acquisition whose reply was lost may be sent again: its owner has it, by the same token."""
        key, owner = backend.key(name), new_owner()
        first, second = (backend.try_acquire(key, owner, 30.0) for _ in range(2))
        assert isinstance(first, Grant)
        assert isinstance(second, Grant)
        assert first.token == second.token
        assert not second.is_new, "who shares an owner would give back what another run holds"
        assert isinstance(backend.try_acquire(key, new_owner(), 30.0), Busy)
        assert backend.release(key, owner)
        assert not backend.release(key, owner)

    def test_extend_gives_a_new_length(self, name: str) -> None:
        """An extended lease outlives its first ttl and ends with its new one."""

        def outlive(ttl: float) -> None:
            with get_lock(name, ttl=ttl) as lease:
                asked = now()
                lease.extend(100)
                assert (asked + 100 - now()) * 0.98 < lease.remaining() <= 100
                until(lambda: lease.remaining() < 100 - ttl, self.patience)
                assert elsewhere(get_lock(name).try_acquire) is None
                lease.ensure_held()

        at_leisure(outlive, self.shortest_ttl)

    def test_extending_never_shortens(self, backend: BaseLockBackend, name: str) -> None:
        """An extension to less than what is left leaves the lease as it is: the engine compares."""
        with get_lock(name, ttl=60) as lease:
            lease.extend(self.shortest_ttl)
            assert backend.extend(lease.key, lease.owner, self.shortest_ttl)
            assert backend.extend_many([(lease.key, lease.owner, self.shortest_ttl)]) == [True]
            asked = now()
            until(lambda: now() > asked + self.shortest_ttl, self.patience)
            holder = backend.holder(lease.key)
            assert holder is not None
            assert holder.owner == lease.owner
            assert holder.remaining is None or holder.remaining > 30
            assert backend.extend(lease.key, lease.owner, self.shortest_ttl)

    def test_the_engine_itself_refuses_a_stale_owner(self, backend: BaseLockBackend, name: str) -> None:
        """Not only the client's clock: the engine compares the owner on release and on extension."""
        key, stale, successor = backend.key(name), new_owner(), new_owner()
        backend.try_acquire(key, stale, self.shortest_ttl)
        until(lambda: isinstance(backend.try_acquire(key, successor, 30.0), Grant), self.patience)
        assert not backend.release(key, stale)
        assert not backend.extend(key, stale, 60.0)
        assert backend.extend_many([(key, stale, 60.0), (key, successor, 30.0)]) == [False, True]
        holder = backend.holder(key)
        assert holder is not None
        assert holder.owner == successor
        assert backend.release(key, successor)

    def test_an_extension_never_revives(self, backend: BaseLockBackend, name: str) -> None:
        """A lease that has ended is not brought back by extending it."""
        key, owner = backend.key(name), new_owner()
        backend.try_acquire(key, owner, self.shortest_ttl)
        until(lambda: backend.holder(key) is None, self.patience)
        assert not backend.extend(key, owner, 30.0)
        assert backend.extend_many([(key, owner, 30.0)]) == [False]
        assert backend.holder(key) is None

    def test_min_hold_outlasts_the_release(self, name: str) -> None:
        """A lock with `min_hold` stays taken after an early release, until that time is over."""
        with get_lock(name, ttl=30, min_hold=self.shortest_ttl) as lease:
            began = now() - 30 + lease.remaining()
        successor = get_lock(name, ttl=30).acquire(wait=self.patience)
        assert now() - began >= self.shortest_ttl * 0.98
        successor.release()

    def test_keep_leaves_the_lock_to_its_ttl(self, name: str) -> None:
        """A kept lease isn't released by its holder and ends with its ttl."""
        lease = get_lock(name, ttl=self.shortest_ttl).acquire()
        began = now() - self.shortest_ttl + lease.remaining()
        lease.leave_to_expire()
        successor = get_lock(name, ttl=30).acquire(wait=self.patience)
        assert now() - began >= self.shortest_ttl * 0.98
        successor.release()
