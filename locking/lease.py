"""One time-limited grant of a lock, from its acquisition to its end.

A lease is held, unknown (the backend doesn't answer, and its local deadline hasn't passed), lost, or
released. Its deadline is counted on the local clock from before the request was sent, so it never outlives
the server's.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from locking.backends.base import BaseLockBackend
from locking.clock import now
from locking.exceptions import BackendError, LockLost, LockNotOwned
from locking.identity import PROCESS
from locking.names import check_ttl
from locking.signals import LockEvent, Outcome, announce, heard, lock_lost, lock_released, tell
from locking.tally import NOTES
from locking.whereabouts import Site

logger = logging.getLogger("locking")


class State(enum.Enum):
    """What is known of a lease."""

    HELD = "held"
    UNKNOWN = "unknown"
    LOST = "lost"
    RELEASED = "released"


HoldKey = tuple[str, str, int]
HOLDS: Final[weakref.WeakValueDictionary[HoldKey, SingleLease]] = weakref.WeakValueDictionary()
"""What this process holds. Weak: a lease that nobody refers to any more isn't renewed and so ends by itself.
"""

_losing = threading.Lock()


def _renew_lock() -> None:
    """Give a forked child a lock of its own: one that another thread held at that moment is never let go."""
    global _losing
    _losing = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def held_by(context: object, alias: str, key: str) -> SingleLease | None:
    """Return the lease by which a thread or task holds `key`, if it does.

    One whose release nobody answered isn't counted: on the server it may be another's by now.
    """
    lease = HOLDS.get((alias, key, id(context)))
    if lease is None or lease.unreleased:
        return None
    # The id of a thread that has ended may be another's by now: only the object itself tells.
    return lease if lease.context() is context else None


class Lease(ABC):
    """What `acquire` returns: proof of a hold, and the way to ask for its state, prolong it and end it."""

    __slots__ = ()
    name: str
    key: str
    """Where the backend keeps it; of the first of several names, as `owner` is."""
    owner: str
    """The identity that proves the hold, unique to it."""
    ttl: float

    @property
    @abstractmethod
    def leases(self) -> Sequence[SingleLease]:
        """The leases of the single names, in the order in which they were taken."""

    @property
    @abstractmethod
    def state(self) -> State:
        """Held, unknown, lost or released; asks nobody, so it is as fresh as the last answer."""

    @abstractmethod
    def remaining(self) -> float:
        """Return the seconds that are surely left, by the local clock; 0.0 when there are none."""

    @abstractmethod
    def ensure_held(self) -> None:
        """Raise LockLost if the lease has ended or may have; call it before what can't be undone."""

    @abstractmethod
    def confirm(self) -> None:
        """`ensure_held` for the last moment before COMMIT: a lease that another run of the same work may have
        taken over also asks the backend (BackendUnavailable: nobody can tell).
        """

    @abstractmethod
    def extend(self, ttl: float) -> None:
        """Give the lease `ttl` seconds from now. LockLost: it had ended already and stays ended."""

    @abstractmethod
    def release(self) -> None:
        """Let the lock go. LockLost: it had ended before; LockNotOwned: it was released already."""

    @abstractmethod
    async def aextend(self, ttl: float) -> None:
        """`extend` for asyncio."""

    @abstractmethod
    async def arelease(self) -> None:
        """`release` for asyncio."""

    @abstractmethod
    def keep(self) -> None:
        """Stop renewing and leave the lock to its ttl: it stays taken until then."""

    @property
    def names(self) -> tuple[str, ...]:
        """The locked names, sorted."""
        return tuple(lease.name for lease in self.leases)

    @property
    def fencing_token(self) -> int:
        """The strictly rising number of this hold; of the first of several names (see `leases`)."""
        return self.leases[0].token

    def __bool__(self) -> bool:
        """True, so that `if lock.try_acquire():` reads as it should."""
        return True


class SingleLease(Lease):
    """The lease of one name."""

    __slots__ = (
        "__weakref__", "_generation", "_hold_key", "_on_lost", "_state", "backend", "behind_fence", "context",
        "deadline", "depth", "key", "min_hold", "name", "owner", "renew_at", "renewals", "renewed",
        "shared_name", "site", "taken_at", "template", "token", "ttl", "unreleased",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        key: str,
        owner: str,
        backend: BaseLockBackend,
        context: object,
        *,
        token: int,
        ttl: float,
        since: float,
        renewed: bool,
        min_hold: float = 0.0,
        on_lost: Callable[[Lease], None] | None = None,
        shared_name: bool = False,
        template: str | None = None,
        site: Site | None = None,
    ) -> None:
        self.name, self.key, self.owner, self.backend = name, key, owner, backend
        # Weak, so that a lease which its thread left behind goes with the thread, and isn't renewed for ever.
        self.context = weakref.ref(context)
        self.token, self.ttl, self.renewed, self.min_hold = token, ttl, renewed, min_hold
        self.taken_at = since
        self.deadline = since + ttl
        self.renew_at = since + ttl / 3
        self.depth = 1
        self.renewals = 0
        self.unreleased = False  # its release has begun, and nobody has answered it
        self.site = site  # where in the code it was taken
        self.behind_fence = False  # a fenced body has begun: its token is final
        self.shared_name = shared_name  # another process may act for the same client, and take the lock over
        self.template = template
        self._on_lost = on_lost
        self._state = State.HELD
        self._generation = PROCESS.generation
        # A semaphore's holder may hold it many times, each time by another owner; any other lock once.
        self._hold_key = (backend.alias, key if backend.exclusive else owner, id(context))
        HOLDS[self._hold_key] = self

    def __repr__(self) -> str:
        where = f"{self.name!r} on {self.backend.alias!r}"
        return f"<Lease of {where}: {self.state.value}, {self.remaining():.3f} s left>"

    @property
    def leases(self) -> Sequence[SingleLease]:
        """Itself."""
        return (self,)

    @property
    def state(self) -> State:
        """See `Lease.state`; a lease whose deadline has passed, or whose session is over, counts as lost, and
        one whose release nobody has answered as unknown.
        """
        if self._state in (State.HELD, State.UNKNOWN) and not self.inherited:
            if self._has_ended():
                self.lose()
            elif self.unreleased or not self.backend.in_touch():
                return State.UNKNOWN
        return self._state

    def _has_ended(self) -> bool:
        """Whether the ttl is over, or the session that the hold depends on may be."""
        moment = now()
        return moment >= self.deadline or moment >= self.backend.hold_ends(self.key, self.owner)

    @property
    def inherited(self) -> bool:
        """True in a forked child: the hold is its parent's, and only the parent may end it."""
        return self._generation != PROCESS.generation

    @property
    def open(self) -> bool:
        """Neither released nor found lost so far: an end of it is still to be told."""
        return self._state in (State.HELD, State.UNKNOWN) and not self.inherited

    def remaining(self) -> float:
        """See `Lease.remaining`."""
        if self.inherited or self.unreleased or self._state not in (State.HELD, State.UNKNOWN):
            return 0.0
        return 0.0 if self._has_ended() else max(0.0, self.deadline - now())

    def ensure_held(self) -> None:
        """See `Lease.ensure_held`."""
        if self.inherited:
            raise LockNotOwned(f"{self!r} belongs to the process that forked this one")
        state = self.state
        if state is State.LOST:
            raise self._lost_error()
        if state is State.RELEASED:
            raise LockNotOwned(f"the lock {self.name!r} was released already")
        if self.unreleased:
            raise LockNotOwned(
                f"the release of the lock {self.name!r} has begun and nobody has answered it: it may be"
                " another's by now"
            )

    def confirm(self) -> None:
        """See `Lease.confirm`."""
        self.ensure_held()
        if not self.shared_name:
            return
        holder = self.backend.holder(self.key)
        if holder is None or holder.owner != self.owner:
            self.lose()
            raise self._lost_error()

    def _lost_error(self) -> LockLost:
        return LockLost(
            f"the lock {self.name!r} on backend {self.backend.alias!r} was lost"
            f" {now() - self.taken_at:.3f} s after it was acquired (ttl {self.ttl:g} s):"
            " another may hold it now, so nothing done since may count"
        )

    def event(self, outcome: Outcome, *, waited: float | None = None) -> LockEvent:
        """What the signals tell of this lease now."""
        return LockEvent(
            outcome=outcome,
            name=self.name,
            key=self.key,
            backend=self.backend.alias,
            owner=self.owner,
            token=self.token,
            ttl=self.ttl,
            waited=waited,
            held=now() - self.taken_at if waited is None else None,
            template=self.template,
        )

    # prolonging

    def extend(self, ttl: float) -> None:
        """See `Lease.extend`."""
        since = self._may_extend(ttl)
        verb = self.backend.shorten if ttl < self.remaining() else self.backend.extend
        self._extended(verb(self.key, self.owner, ttl), since, ttl)

    async def aextend(self, ttl: float) -> None:
        """See `Lease.extend`."""
        since = self._may_extend(ttl)
        verb = self.backend.ashorten if ttl < self.remaining() else self.backend.aextend
        self._extended(await verb(self.key, self.owner, ttl), since, ttl)

    def _may_extend(self, ttl: float) -> float:
        check_ttl(ttl)
        self.ensure_held()
        return now()

    def _extended(self, held: bool, since: float, ttl: float) -> None:
        if not held:
            self.lose()
            raise self._lost_error()
        self.prolong(since, ttl)

    def prolong(self, since: float, ttl: float) -> None:
        """Note that the backend has extended the lease by a request sent at `since`."""
        self.ttl = ttl
        self.deadline = since + ttl
        self.renew_at = since + ttl / 3
        if self._state is State.UNKNOWN:
            self._state = State.HELD

    # losing

    def doubt(self) -> None:
        """Note that the backend doesn't answer: the lease lives on until its deadline, unconfirmed."""
        if self._state is State.HELD:
            self._state = State.UNKNOWN

    def lose(self) -> None:
        """Note that the lease is over although nobody released it, and tell `on_lost`, once."""
        with _losing:
            if self._state not in (State.HELD, State.UNKNOWN):
                return
            self._state = State.LOST
        NOTES.append((self.backend.settings.alias, "lost", 0.0))
        tell(lock_lost, lambda: self.event("lost"))
        if self._on_lost is not None:
            threading.Thread(target=self._tell_lost, name="locking-on-lost", daemon=True).start()

    def _tell_lost(self) -> None:
        """Run the caller's hook in a thread of its own: a slow one must not hold up renewals."""
        assert self._on_lost is not None
        try:
            self._on_lost(self)
        except Exception:
            logger.exception("on_lost of the lock %r raised", self.name)

    # ending

    def release(self) -> None:
        """See `Lease.release`."""
        if not self._leave():
            return
        if self.min_hold and (rest := self._rest_of_min_hold()):
            self._ended(self.backend.shorten(self.key, self.owner, rest), "kept")
        else:
            self._ended(self.backend.release(self.key, self.owner), "released")

    async def arelease(self) -> None:
        """See `Lease.release`."""
        if not self._leave():
            return
        if self.min_hold and (rest := self._rest_of_min_hold()):
            self._ended(await self.backend.ashorten(self.key, self.owner, rest), "kept")
        else:
            self._ended(await self.backend.arelease(self.key, self.owner), "released")

    def _leave(self) -> bool:
        """Step out of one level of re-entry; True when it was the outermost, so that the backend must be
        told.
        """
        if self.inherited:
            raise LockNotOwned(
                f"{self!r} belongs to the process that forked this one: it isn't released here"
            )
        if self._state is State.RELEASED:
            raise LockNotOwned(f"the lock {self.name!r} was released already")
        if self.depth > 1:
            self.depth -= 1
            return False
        self.renewed = False  # before the request, so that no renewal can follow the release
        self.unreleased = True
        return True

    def _rest_of_min_hold(self) -> float:
        """Return the seconds for which the lock must stay taken although its holder is done."""
        rest = self.taken_at + self.min_hold - now()
        return rest if rest >= 0.001 else 0.0

    def _ended(self, was_held: bool, outcome: Outcome) -> None:
        self.unreleased = False
        HOLDS.pop(self._hold_key, None)
        if not was_held:
            self.lose()
        if self._state is State.LOST:
            raise self._lost_error()
        self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        self._state = State.RELEASED
        NOTES.append((self.backend.settings.alias, "ended", now() - self.taken_at))
        if heard(lock_released):
            announce(lock_released, self.event(outcome))

    def keep(self) -> None:
        """See `Lease.keep`."""
        self.renewed = False
        if self.depth > 1:
            self.depth -= 1
            return
        HOLDS.pop(self._hold_key, None)
        if self.state is not State.LOST:
            self._settle("kept")


class MultiLease(Lease):
    """The leases of several names, held and ended together."""

    def __init__(self, leases: Sequence[SingleLease]) -> None:
        self._leases = tuple(leases)
        self.name = ", ".join(lease.name for lease in leases)
        self.key, self.owner = leases[0].key, leases[0].owner
        self.ttl = min(lease.ttl for lease in leases)

    def __repr__(self) -> str:
        return f"<Leases of {self.name}: {self.state.value}, {self.remaining():.3f} s left>"

    @property
    def leases(self) -> Sequence[SingleLease]:
        """See `Lease.leases`."""
        return self._leases

    @property
    def state(self) -> State:
        """The worst of all states: one lost name is enough to stop."""
        states = {lease.state for lease in self._leases}
        return next(s for s in (State.LOST, State.RELEASED, State.UNKNOWN, State.HELD) if s in states)

    def remaining(self) -> float:
        """See `Lease.remaining`: of the lease that ends first."""
        return min(lease.remaining() for lease in self._leases)

    def ensure_held(self) -> None:
        """See `Lease.ensure_held`."""
        for lease in self._leases:
            lease.ensure_held()

    def confirm(self) -> None:
        """See `Lease.confirm`."""
        for lease in self._leases:
            lease.confirm()

    def extend(self, ttl: float) -> None:
        """See `Lease.extend`."""
        for lease in self._leases:
            lease.extend(ttl)

    async def aextend(self, ttl: float) -> None:
        """See `Lease.extend`."""
        for lease in self._leases:
            await lease.aextend(ttl)

    def release(self) -> None:
        """Release every name, last one first; the first error is raised after all were tried."""
        errors = [error for lease in reversed(self._leases) if (error := _error_of(lease.release))]
        if errors:
            raise errors[0]

    async def arelease(self) -> None:
        """`release` for asyncio."""
        errors: list[Exception] = []
        for lease in reversed(self._leases):
            try:
                await lease.arelease()
            except (LockLost, LockNotOwned, BackendError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def keep(self) -> None:
        """See `Lease.keep`."""
        for lease in self._leases:
            lease.keep()


def _error_of(step: Callable[[], None]) -> Exception | None:
    try:
        step()
    except (LockLost, LockNotOwned, BackendError) as error:
        return error
    return None
