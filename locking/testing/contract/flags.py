"""What a backend says it can do, it does; what it says it can't, it refuses."""

from __future__ import annotations

import asyncio

import pytest

from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import ForceRelease, Kinds, Listing, backend_of, listing, releaser_of
from locking.core.lock import get_lock
from locking.exceptions import LockNotSupported
from locking.testing.contract.base import ContractBase, elsewhere, until
from locking.utils.ownership import new_owner


class FlagContract(ContractBase):
    """Every flag, both ways."""

    def test_fencing(self, backend: BaseLockBackend, name: str) -> None:
        """`supports_fencing`: each hold's token is higher than the last; off: `fenced=True` is refused."""
        if not backend.supports_fencing:
            with pytest.raises(LockNotSupported, match="fencing"):
                get_lock(name, fenced=True)
            return
        tokens = []
        for fenced in (True, False, True):
            for _ in range(5):
                with get_lock(name, ttl=30, fenced=fenced) as lease:
                    tokens.append(lease.fencing_token)
        assert tokens == sorted(set(tokens))
        assert tokens[0] > 0

    def test_tokens_rise_over_an_expiry(self, backend: BaseLockBackend, name: str) -> None:
        """A holder whose lease ran out has the lower token: that is what the database tells it by."""
        if not backend.supports_fencing:
            pytest.skip("no fencing tokens")
        stale = get_lock(name, ttl=self.shortest_ttl, fenced=True).acquire()
        successor = elsewhere(lambda: get_lock(name, ttl=30, fenced=True).acquire(wait=self.patience))
        assert successor.fencing_token > stale.fencing_token
        successor.release()

    def test_tokens_rise_for_tasks_and_threads_alike(self, backend: BaseLockBackend, name: str) -> None:
        """Threads and tasks draw from one series."""
        if not backend.supports_fencing:
            pytest.skip("no fencing tokens")

        async def draw() -> int:
            async with get_lock(name, ttl=30, fenced=True) as lease:
                return lease.fencing_token

        tokens = []
        for _ in range(3):
            tokens.append(asyncio.run(draw()))
            with get_lock(name, ttl=30, fenced=True) as lease:
                tokens.append(lease.fencing_token)
        assert tokens == sorted(set(tokens))

    def test_force_release(self, backend: BaseLockBackend, name: str) -> None:
        """`ForceRelease`: breaks the hold it names and no other; without: LockNotSupported."""
        key, owner = backend.key(name), new_owner()
        backend.try_acquire(key, owner, 30.0)
        if not isinstance(backend, ForceRelease):
            with pytest.raises(LockNotSupported, match="force_release"):
                releaser_of(backend, "lock")
            return
        assert not backend.force_release(key, new_owner())
        holder = backend.holder(key)
        assert holder is not None
        assert holder.owner == owner
        assert backend.force_release(key, owner)
        assert backend.holder(key) is None
        assert not backend.force_release(key, owner)

    def test_listing(self, backend: BaseLockBackend, name: str) -> None:
        """`Listing`: a held lock is listed with its holder until it ends; without: LockNotSupported."""
        key, owner = backend.key(name), new_owner()
        if not isinstance(backend, Listing):
            with pytest.raises(LockNotSupported, match="list"):
                listing(backend)
            return
        backend.try_acquire(key, owner, 30.0)
        listed = backend.held(prefix=key)
        assert [(held.key, held.owner, held.kind, held.count) for held in listed] == [(key, owner, "lock", 1)]
        assert listed[0].remaining is None or 0 < listed[0].remaining <= 30
        assert backend.count_held(prefix=key) == 1
        backend.release(key, owner)
        until(lambda: backend.held(prefix=key) == [], self.patience)

    def test_a_list_comes_in_pages(self, backend: BaseLockBackend, name: str) -> None:
        """Pages neither repeat nor leave out a hold, and other prefixes aren't among them."""
        if not isinstance(backend, Listing):
            pytest.skip("no listing")
        keys = [backend.key(f"{name}-{i}") for i in range(5)]
        owners = {key: new_owner() for key in keys}
        for key, owner in owners.items():
            backend.try_acquire(key, owner, 30.0)
        prefix = backend.key(f"{name}-")
        pages = [backend.held(prefix=prefix, offset=offset, limit=2) for offset in (0, 2, 4, 6)]
        assert [len(page) for page in pages] == [2, 2, 1, 0]
        assert {held.key: held.owner for page in pages for held in page} == owners
        assert backend.held(prefix=backend.key(f"{name}-none")) == []
        for key, owner in owners.items():
            backend.release(key, owner)

    def test_kinds(self, backend: BaseLockBackend) -> None:
        """`Kinds`: those it names work, and any other is refused with LockNotSupported."""
        known = backend.kinds if isinstance(backend, Kinds) else ()
        for kind in ("read", "write", "semaphore", "fair"):
            if kind in known:
                assert backend_of(backend, kind).alias.startswith(backend.alias)
            else:
                with pytest.raises(LockNotSupported, match=kind):
                    backend_of(backend, kind)

    def test_the_configuration_is_sound(self, backend: BaseLockBackend) -> None:
        """The backend's own checks find nothing wrong with the settings under test."""
        assert backend.check() == []

    def test_a_closed_backend_opens_again(self, backend: BaseLockBackend, name: str) -> None:
        """`close` ends sockets and threads; the next use opens new ones."""
        with get_lock(name, ttl=30):
            backend.close()
            backend.close()
            assert elsewhere(get_lock(name).try_acquire) is None
        assert not get_lock(name).locked()
