"""Loss and outage: never a body without its lock, never a loss untold, never an error masked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from django.test.utils import override_settings

from locking.backends.base import BaseLockBackend
from locking.core.lease import Lease, State
from locking.core.lock import get_lock
from locking.exceptions import BackendUnavailable, LockLost
from locking.testing.contract.base import ContractBase, at_leisure, until
from locking.testing.contract.waiting import FAR
from locking.utils.clock import now
from locking.utils.ownership import new_owner


class LossContract(ContractBase):
    """What the holder learns, and when."""

    @pytest.fixture
    def outage(self) -> Iterator[None]:
        """Stop the server for the length of the test."""
        if self.unreachable is None:
            pytest.skip("this backend needs no server, so none can be missing")
        with override_settings(LOCKING={"default": dict(self.unreachable)}):
            yield

    @pytest.mark.usefixtures("outage")
    def test_a_backend_that_is_down_never_means_acquired(self, name: str) -> None:
        """Without a server every way to take the lock raises BackendUnavailable, and no body runs."""
        lock = get_lock(name, ttl=30, wait=0.2)
        for attempt in (
            lock.acquire,
            lock.try_acquire,
            lambda: lock.acquire(wait=0),
            lock.__enter__,
            lock.locked,
        ):
            with pytest.raises(BackendUnavailable, match="default"):
                attempt()
        assert not lock.owned()

    @pytest.mark.usefixtures("outage")
    def test_a_backend_that_is_down_never_means_acquired_for_asyncio(self, name: str) -> None:
        """The same for tasks."""

        async def scenario() -> None:
            lock = get_lock(name, ttl=30, wait=0.2)
            for attempt in (lock.aacquire, lock.atry_acquire, lock.__aenter__, lock.alocked):
                with pytest.raises(BackendUnavailable, match="default"):
                    await attempt()
            assert not lock.owned()

        asyncio.run(scenario())

    def test_a_lease_kept_by_the_watchdog_outlives_its_length(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a ttl the lease is renewed for as long as it is held."""

        def outlive(length: float) -> None:
            monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", length)
            with get_lock(name, ttl=None) as lease:
                first_end = lease.leases[0].taken_at + length
                until(lambda: now() > first_end, self.patience)
                is_locked = get_lock(name).locked()
                lease.ensure_held()  # raises if the machine stood still, and a longer lease is tried
                assert is_locked
            assert not get_lock(name).locked()

        at_leisure(outlive, self.shortest_ttl)

    def test_a_lost_lock_is_found_and_reported_once(
        self, backend: BaseLockBackend, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A lock that the engine forgot is found lost, reported to `on_lost` once, and never taken back."""
        monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", FAR)
        monkeypatch.setattr("locking.core.lease.RENEW_AFTER", 0.02 / FAR)
        reported: list[Lease] = []
        lease = get_lock(name, ttl=None, on_lost=reported.append).acquire()
        (single,) = lease.leases
        backend.release(single.key, single.owner)
        until(lambda: reported, self.patience)
        assert lease.state is State.LOST
        assert backend.holder(single.key) is None
        with pytest.raises(LockLost):
            lease.ensure_held()
        with pytest.raises(LockLost):
            lease.extend(30)
        with pytest.raises(LockLost):
            lease.release()
        assert reported == [lease]
        assert backend.holder(single.key) is None

    def test_leaving_the_block_reports_an_unnoticed_loss(self, backend: BaseLockBackend, name: str) -> None:
        """Even if only the engine knows: the release finds that another holds the lock."""
        rival = new_owner()
        with pytest.raises(LockLost, match=name), get_lock(name, ttl=30) as lease:
            (single,) = lease.leases
            backend.release(single.key, single.owner)
            backend.try_acquire(single.key, rival, 30.0)
        holder = backend.holder(backend.key(name))
        assert holder is not None
        assert holder.owner == rival
        backend.release(backend.key(name), rival)
