"""Backends with one rule taken out each; the contract must refuse every one."""

from locking.backends.base import Grant
from locking.backends.memory import MemoryBackend, MemoryWaiter
from locking.utils.clock import now


class AnyoneReleases(MemoryBackend):
    """Release doesn't compare the owner."""

    def release(self, key, owner):
        """Release the present holder's."""
        hold = self.holder(key)
        return hold is not None and super().release(key, hold.owner)


class AnyoneExtends(MemoryBackend):
    """Extend doesn't compare the owner."""

    def extend(self, key, owner, ttl):
        """Extend anyone who has it."""
        hold = self.holder(key)
        return hold is not None and super().extend(key, hold.owner, ttl)


class ExtensionRevives(MemoryBackend):
    """Extend takes a lock that has ended."""

    def extend(self, key, owner, ttl):
        """Take it if it is gone."""
        return super().extend(key, owner, ttl) or isinstance(self.store.take(key, owner, ttl), Grant)


class NeverExpires(MemoryBackend):
    """The ttl is ignored."""

    def waiter(self, key, owner, ttl, *, fenced=False):
        """Take it for an hour."""
        return super().waiter(key, owner, 3600.0)


class ExpiresEarly(MemoryBackend):
    """The engine's lease is shorter than the client's."""

    def waiter(self, key, owner, ttl, *, fenced=False):
        """Take it for half of the time."""
        return super().waiter(key, owner, ttl / 2)


class GrantsToAll(MemoryBackend):
    """There is no exclusion."""

    def waiter(self, key, owner, ttl, *, fenced=False):
        """Each owner has a lock of its own."""
        return super().waiter(f"{key}:{owner}", owner, ttl)


class OneToken(MemoryBackend):
    """Every hold has the same token."""

    def waiter(self, key, owner, ttl, *, fenced=False):
        """Send the counter back each time, to where no clock overtakes it."""
        self.store._token = 1 << 60
        return super().waiter(key, owner, ttl)


class LastComeFirstServed(MemoryBackend):
    """The queue is a stack, and the flag says that it is fair."""

    def release(self, key, owner):
        """Turn the queue round first."""
        queue = self.store._queues.get(key)
        if queue:
            queue.rotate(1)
        return super().release(key, owner)


class NoWakeUps(MemoryBackend):
    """A release wakes no waiter: each sleeps to the end of the lease."""

    def waiter(self, key, owner, ttl, *, fenced=False):
        """Return a waiter that a release does not wake."""
        place = super().waiter(key, owner, ttl)
        place.wake = lambda: None  # type: ignore[method-assign]
        return place


class RefusesRepeats(MemoryBackend):
    """An owner that asks again hears that the lock is busy."""

    def try_acquire(self, key, owner, ttl, *, fenced=False):
        """Ask in another name."""
        return super().try_acquire(key, owner + ("x" if self.holder(key) else ""), ttl)


class FoldsCase(MemoryBackend):
    """Keys are lower case, as a database's collation may have it."""

    def key(self, name):
        """Fold."""
        return super().key(name).lower()


class StaysInLine(MemoryBackend):
    """Anyone who gives up is still in the queue."""

    class Waiter(MemoryWaiter):
        """A place that isn't left."""

        def leave(self):
            """Do nothing."""

    def waiter(self, key, owner, ttl, *, fenced=False):
        """A place that isn't left."""
        return self.Waiter(self.store, key, owner, ttl)


class BreaksAnyone(MemoryBackend):
    """Force release doesn't compare whom it was asked to break."""

    def force_release(self, key, expected):
        """Break anyone who has it."""
        hold = self.holder(key)
        return hold is not None and self.store.release(key, hold.owner)


class ListsNothing(MemoryBackend):
    """It lists, and leaves out everything."""

    def held(self, *, prefix="", offset=0, limit=50):
        """List nothing, whatever is held."""
        return []


class TooLate(MemoryBackend):
    """The lease is counted from the reply, not from the request: it looks longer than it is."""

    def waiter(self, key, owner, ttl, *, fenced=False):
        """Grant from later on."""
        place = super().waiter(key, owner, ttl)
        take = place.try_acquire

        def later(*, queue):
            outcome = take(queue=queue)
            return Grant(outcome.token, now() + 1) if isinstance(outcome, Grant) else outcome

        place.try_acquire = later  # type: ignore[method-assign]
        return place


class Blocks(MemoryBackend):
    """A wait of zero puts the caller to sleep."""

    def waiter(self, key, owner, ttl, *, fenced=False):
        """Wait whatever was asked for."""
        place = super().waiter(key, owner, ttl)
        take = place.try_acquire

        def sleepy(*, queue):
            place.try_acquire = take  # type: ignore[method-assign]
            outcome = take(queue=True)
            return outcome if isinstance(outcome, Grant) else place.wait(0.01)

        place.try_acquire = sleepy  # type: ignore[method-assign]
        return place
