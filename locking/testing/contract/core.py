"""What no engine can change: it is decided before an engine is asked, or whatever the engine answered.

A backend has this from `locking`, and one engine is enough to show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from locking.backends.base import BaseLockBackend
from locking.core.lease import State
from locking.core.lock import get_lock
from locking.exceptions import BackendUnavailable, LockKeyError, LockLost, LockNotOwned
from locking.testing import simulate_loss
from locking.testing.contract.base import ContractBase, begin, elsewhere, until
from locking.testing.contract.reentry import ReentryContract

VERBS = (
    "try_acquire", "extend", "extend_many", "release", "holder", "waiter",
    "atry_acquire", "aextend", "arelease", "aholder", "async_waiter",
)  # fmt: skip

MISTAKES: dict[str, Callable[[], object]] = {
    "no name": lambda: get_lock(),
    "empty name": lambda: get_lock(""),
    "blank name": lambda: get_lock(" \t"),
    "a name that is no str": lambda: get_lock(42),  # type: ignore[arg-type]
    "None as a name": lambda: get_lock("a", None),  # type: ignore[arg-type]
    "name too long": lambda: get_lock("x" * 1025),
    "open brace": lambda: get_lock("a{b"),
    "closing brace first": lambda: get_lock("a}b{"),
    "lone surrogate": lambda: get_lock("\ud800"),
    "ttl of 0": lambda: get_lock("a", ttl=0),
    "negative ttl": lambda: get_lock("a", ttl=-1),
    "ttl of True": lambda: get_lock("a", ttl=True),
    "ttl as text": lambda: get_lock("a", ttl="10"),  # type: ignore[arg-type]
    "ttl without end": lambda: get_lock("a", ttl=float("inf")),
    "ttl that is no number": lambda: get_lock("a", ttl=float("nan")),
    "ttl of years": lambda: get_lock("a", ttl=10**9),
    "negative wait": lambda: get_lock("a", wait=-0.1),
    "wait as text": lambda: get_lock("a", wait="5"),  # type: ignore[arg-type]
    "negative wait at the call": lambda: get_lock("a").acquire(wait=-1),
    "negative min_hold": lambda: get_lock("a", min_hold=-1),
}


class MistakeContract(ContractBase):
    """A mistake is reported before anything is sent."""

    @pytest.mark.parametrize("mistake", list(MISTAKES.values()), ids=list(MISTAKES))
    def test_bad_arguments_are_refused_before_io(
        self, backend: BaseLockBackend, mistake: Callable[[], object]
    ) -> None:
        """A mistake in an argument raises ValueError and the backend is never asked."""
        with _forbidden(backend), pytest.raises(ValueError, match=r"not|needs|at most|empty|pair") as caught:
            mistake()
        assert len(str(caught.value)) > 20

    def test_a_bad_extension_is_refused_before_io(self, backend: BaseLockBackend, name: str) -> None:
        """`extend` refuses a ttl that can't be one without asking the backend, and the lease stays."""
        with get_lock(name, ttl=30) as lease:
            with _forbidden(backend), pytest.raises(ValueError, match="ttl must be"):
                lease.extend(0)
            lease.ensure_held()

    def test_names_that_are_no_names_raise_lock_key_error(self) -> None:
        """A bad name is both a LockError and a ValueError, and the message shows it."""
        with pytest.raises(LockKeyError, match=r"42.*int"):
            get_lock(42)  # type: ignore[arg-type]


class OwnershipContract(ContractBase):
    """Only the holder of a lock that is held releases and extends it."""

    def test_a_second_release_is_refused(self, name: str) -> None:
        """Releasing twice raises LockNotOwned, by the lock and by the lease."""
        lock = get_lock(name, ttl=30)
        lease = lock.acquire()
        lock.release()
        with pytest.raises(LockNotOwned, match=name):
            lock.release()
        with pytest.raises(LockNotOwned, match="released already"):
            lease.release()

    def test_a_late_second_release_spares_the_next_holder(self, name: str) -> None:
        """A release that comes twice doesn't free the lock of the caller that has it by then."""
        lease = get_lock(name, ttl=30).acquire()
        lease.release()
        with get_lock(name, ttl=30):
            with pytest.raises(LockNotOwned):
                lease.release()
            assert elsewhere(get_lock(name).try_acquire) is None

    def test_release_and_extend_need_an_acquisition(self, name: str) -> None:
        """A lock that was never acquired can be neither released nor extended."""
        with pytest.raises(LockNotOwned, match=name):
            get_lock(name).release()
        with pytest.raises(LockNotOwned, match=name):
            get_lock(name).extend(30)

    def test_a_stale_holder_can_neither_release_nor_extend(self, name: str) -> None:
        """A holder that lost the lock to another gets LockLost, and the other keeps it."""
        stale = get_lock(name, ttl=self.shortest_ttl).acquire()
        successor = elsewhere(lambda: get_lock(name, ttl=30).acquire(wait=self.patience))
        attempts: list[Callable[[], None]] = [lambda: stale.extend(30), stale.ensure_held, stale.release]
        for attempt in attempts:
            with pytest.raises(LockLost, match=name):
                attempt()
        assert elsewhere(get_lock(name).try_acquire) is None
        successor.ensure_held()
        successor.release()

    def test_double_and_unearned_releases_are_refused_for_tasks(self, name: str) -> None:
        """Releasing twice, or without a hold, raises LockNotOwned."""

        async def scenario() -> None:
            lock = get_lock(name, ttl=30)
            with pytest.raises(LockNotOwned):
                await lock.arelease()
            lease = await lock.aacquire()
            await lock.arelease()
            with pytest.raises(LockNotOwned):
                await lock.arelease()
            with pytest.raises(LockNotOwned):
                await lease.arelease()

        asyncio.run(scenario())

    def test_a_lease_with_a_ttl_is_not_renewed(self, name: str) -> None:
        """A number given as ttl is an upper bound."""
        lease = get_lock(name, ttl=self.shortest_ttl).acquire()
        until(lambda: not get_lock(name).locked(), self.patience)
        assert lease.state is State.LOST


class BodyContract(ContractBase):
    """How a block ends: with its own error, else with the loss of its lock, else well."""

    def test_leaving_the_block_tells_a_loss(self, name: str) -> None:
        """A body that ends well under a lost lock ends with LockLost."""
        with pytest.raises(LockLost, match=name), get_lock(name, ttl=30) as lease:
            simulate_loss(lease)

    def test_a_loss_does_not_mask_the_bodys_error(self, name: str) -> None:
        """The body's own exception goes on, whatever became of the lock."""
        with pytest.raises(ZeroDivisionError), get_lock(name, ttl=30) as lease:
            simulate_loss(lease)
            raise ZeroDivisionError

    def test_leaving_an_async_block_tells_a_loss(self, name: str) -> None:
        """A body that ends well under a lost lock ends with LockLost; one that failed keeps its own error."""

        async def scenario() -> None:
            with pytest.raises(LockLost):
                async with get_lock(name, ttl=30) as lease:
                    await asyncio.to_thread(simulate_loss, lease)
            with pytest.raises(ZeroDivisionError):
                async with get_lock(name, ttl=30) as lease:
                    await asyncio.to_thread(simulate_loss, lease)
                    raise ZeroDivisionError

        asyncio.run(scenario())

    def test_a_failing_release_spoils_nothing(self, backend: BaseLockBackend, name: str) -> None:
        """A body that is done has its result though the release found no server, and is retried later."""
        down = mock.Mock(side_effect=BackendUnavailable("down"))
        with mock.patch.object(backend, "release", down), get_lock(name, ttl=300):
            pass
        assert down.called
        until(lambda: not get_lock(name).locked(), self.patience)

    def test_a_failing_release_does_not_mask_the_bodys_error(
        self, backend: BaseLockBackend, name: str
    ) -> None:
        """Nor does it hide what the body raised."""
        down = mock.Mock(side_effect=BackendUnavailable("down"))
        with (
            mock.patch.object(backend, "release", down),
            pytest.raises(ZeroDivisionError),
            get_lock(name, ttl=30),
        ):
            raise ZeroDivisionError


class SeveralNamesContract(ContractBase):
    """Several names are one lock: taken in one order, all or none."""

    def test_several_names_are_taken_all_or_none(self, name: str) -> None:
        """If one of several names is busy the others are left free."""
        names = [f"{name}:{letter}" for letter in "cab"]
        with get_lock(names[0], ttl=30):
            assert elsewhere(get_lock(*names, ttl=30).try_acquire) is None
            assert [get_lock(one).locked() for one in names] == [True, False, False]
        lease = get_lock(*names, *names, ttl=30).acquire()
        assert lease.names == tuple(sorted(names))
        assert all(get_lock(one).locked() for one in names)
        lease.release()
        assert not any(get_lock(one).locked() for one in names)

    def test_several_names_all_or_none_for_tasks(self, name: str) -> None:
        """If one of several names is busy the others are left free, also for tasks."""

        async def scenario() -> None:
            names = [f"{name}:{letter}" for letter in "cab"]
            async with get_lock(names[0], ttl=30):
                assert await asyncio.create_task(get_lock(*names, ttl=30).atry_acquire()) is None
                assert [await get_lock(one).alocked() for one in names] == [True, False, False]
            async with get_lock(*names, ttl=30) as lease:
                assert lease.names == tuple(sorted(names))
            assert not await get_lock(*names).alocked()

        asyncio.run(scenario())

    def test_opposite_orders_never_deadlock(self, name: str) -> None:
        """Two callers who name the same locks in opposite orders both get through."""
        one, two = f"{name}:1", f"{name}:2"

        def cross(*names: str) -> bool:
            for _ in range(10):
                with get_lock(*names, ttl=30, wait=self.patience):
                    pass
            return True

        rival = begin(lambda: cross(two, one))
        assert cross(one, two)
        assert rival.result(timeout=self.patience)

    def test_several_names_count_as_lost_when_one_is(self, name: str) -> None:
        """Losing one of several names stops the work under all of them, and the others are released."""
        with pytest.raises(LockLost), get_lock(f"{name}:1", f"{name}:2", ttl=30) as lease:
            simulate_loss(f"{name}:2")
            assert lease.state is State.LOST
            with pytest.raises(LockLost):
                lease.ensure_held()
        assert not get_lock(f"{name}:1").locked()

    def test_an_early_name_that_ended_while_waiting_for_a_later_one(self, name: str) -> None:
        """A body never runs under several names of which the first has ended before the last was got."""
        get_lock(f"{name}:2", ttl=self.shortest_ttl * 2).acquire().leave_to_expire()
        several = get_lock(f"{name}:1", f"{name}:2", ttl=self.shortest_ttl, wait=self.patience)
        try:
            lease = several.acquire()
        except LockLost:
            assert not get_lock(f"{name}:2").locked()
        else:
            lease.ensure_held()
            lease.release()


class CoreContract(MistakeContract, OwnershipContract, ReentryContract, BodyContract, SeveralNamesContract):
    """All that `locking` itself promises; subclass it and set `settings`."""


@contextmanager
def _forbidden(backend: BaseLockBackend) -> Iterator[None]:
    """Fail on any use of the backend's verbs."""
    doors: dict[str, Any] = {
        verb: mock.Mock(side_effect=AssertionError(f"{verb} was called")) for verb in VERBS
    }
    with mock.patch.multiple(backend, **doors):
        yield
