"""One time-limited grant of a lock, from its acquisition to its end.

A lease is held, unknown (the backend doesn't answer, and its local deadline hasn't passed), lost, or
released. Its deadline is counted on the local clock from before the request was sent, so it never outlives
the server's.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Final, Self

from locking.backends.base import BaseLockBackend, Grant
from locking.core import events
from locking.core.liveness import registration
from locking.core.pending_release import release_retrier, report_unreleased
from locking.exceptions import BackendError, LockError, LockExpired, LockLost, LockNotOwned
from locking.keys.names import MIN_TTL, Seconds, check_ttl
from locking.signals import LockEvent, Outcome, has_listeners, lock_lost, lock_released, notify, publish
from locking.utils.background import after_fork, start_thread
from locking.utils.call_site import caller_site
from locking.utils.clock import now
from locking.utils.ownership import PROCESS, current_sync_call, runs_in

if TYPE_CHECKING:
    from locking.core.lock import SingleLock

logger = logging.getLogger(__name__)


class State(enum.Enum):
    """What is known of a lease."""

    HELD = "held"
    UNKNOWN = "unknown"
    LOST = "lost"
    RELEASED = "released"


HoldKey = tuple[str, str, int]
RENEW_AFTER = 0.3
"""Share of its ttl after which a lease is renewed: a few more attempts fit in if one fails."""

HOLDS: Final[weakref.WeakValueDictionary[HoldKey, SingleLease]] = weakref.WeakValueDictionary()
"""What this process holds. Weak: a lease that nobody refers to any more isn't renewed and so ends by itself.
"""

JOINT_LEASES: Final[weakref.WeakValueDictionary[SingleLease, MultiLease]] = weakref.WeakValueDictionary()
"""The lease of several names that a single one is a part of."""

DROPPED: Final[deque[tuple[BaseLockBackend, str, str]]] = deque(maxlen=1000)
"""Backend, key and owner of renewed leases that nobody refers to any more: the end of the process releases
them, unless they have ended by themselves."""

after_fork(DROPPED.clear)

_changing = threading.Lock()


def _renew_lock() -> None:
    """Give a forked child a lock of its own: one held by another thread would never be released."""
    global _changing
    _changing = threading.Lock()


after_fork(_renew_lock)


def held_by(context: object, alias: str, key: str) -> SingleLease | None:
    """Return the lease by which a thread or task holds `key`, if it does.

    One whose release nobody answered isn't counted: on the server it may be another's by now.
    """
    lease = HOLDS.get((alias, key, id(context)))
    if lease is None or lease.unreleased:
        return None
    # The id of a thread that has ended may be another's by now: only the object itself tells.
    return lease if lease.context() is context else None


def live_leases() -> list[SingleLease]:
    """Return the leases of this process. `valuerefs()` copies in one step; `values()` would trip over leases
    that other threads add meanwhile.
    """
    return [lease for ref in HOLDS.valuerefs() if (lease := ref()) is not None]


def latest_of(context: object) -> Lease | None:
    """Return what a thread or task acquired last of all that it still holds."""
    mine = [lease for lease in live_leases() if lease.context() is context and not lease.unreleased]
    latest = max(mine, key=lambda lease: lease.taken_at, default=None)
    return None if latest is None else JOINT_LEASES.get(latest, latest)


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
    def extend(self, ttl: Seconds) -> None:
        """Have the lease last for `ttl` seconds from now, if it doesn't last longer: it is never shortened.

        Raises:
            LockLost: it had ended already and stays ended. BackendUnavailable: no answer.
        """

    @abstractmethod
    def release(self) -> None:
        """Release the lock. LockLost: it had ended before; LockNotOwned: it was released already."""

    @abstractmethod
    async def aextend(self, ttl: Seconds) -> None:
        """`extend` for asyncio."""

    @abstractmethod
    async def arelease(self) -> None:
        """`release` for asyncio."""

    @abstractmethod
    def leave_to_expire(self) -> None:
        """Stop renewing and leave the lock to its ttl: it stays locked until then."""

    @property
    def names(self) -> tuple[str, ...]:
        """The locked names, sorted."""
        return tuple(lease.name for lease in self.leases)

    @property
    def fencing_token(self) -> int:
        """The strictly rising number of this hold; of the first of several names (see `leases`)."""
        return self.leases[0].token

    # `with lease:` releases at the end of the block, as `with lock:` does

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.state is not State.RELEASED:
            self._give_back(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.state is not State.RELEASED:
            await self._agive_back(error)

    def _give_back(self, body_error: BaseException | None) -> None:
        """Release at the end of a block that raised `body_error`, or nothing."""
        try:
            self.release()
        except LockError as failure:
            if not self._is_settled(failure, body_error):
                raise
        except BaseException:  # a signal's handler: nobody knows whether the request has arrived
            release_retrier.schedule_lease(self)
            raise

    async def _agive_back(self, body_error: BaseException | None) -> None:
        """`_give_back` for asyncio: a cancellation that arrives now must not leave the lock taken."""
        await asyncio.shield(self._anow_give_back(body_error))

    async def _anow_give_back(self, body_error: BaseException | None) -> None:
        try:
            await self.arelease()
        except LockError as failure:
            if not self._is_settled(failure, body_error):
                raise
        except BaseException:  # also where the event loop ends
            release_retrier.schedule_lease(self)
            raise

    def _is_settled(self, failure: LockError, body_error: BaseException | None) -> bool:
        """Whether a release that failed is settled when a `with` block is left, and need not be raised.

        The body's own error is never masked, and an outage never spoils its result: a lock that can't be
        released ends with its ttl. One that was lost is an error of its own, unless the body raised already.
        """
        if isinstance(failure, BackendError):
            report_unreleased(self, failure)
            release_retrier.schedule_lease(self)
            lost = [single for single in self.leases if single.state is State.LOST]
            if lost and body_error is None:
                lost[0].ensure_held()
            return True
        if isinstance(failure, LockNotOwned) and all(single.inherited for single in self.leases):
            return True  # a forked child leaves its parent's block
        # A loss was logged when it was found; and the body may have released the lock before it raised.
        return isinstance(failure, LockLost | LockNotOwned) and body_error is not None

    def __bool__(self) -> bool:
        """True, so that `if lock.try_acquire():` reads as it should."""
        return True


def unregister(lease: SingleLease) -> None:
    """Take `lease`, and no newer lease of the same thread and key, out of what this process holds."""
    if HOLDS.get(lease._hold_key) is lease:
        del HOLDS[lease._hold_key]


def is_registered(lease: SingleLease) -> bool:
    """Whether `lease` is among what this process holds: until it is given back, also where it is lost."""
    return HOLDS.get(lease._hold_key) is lease


class SingleLease(Lease):
    """The lease of one name."""

    __slots__ = (
        "__weakref__",
        "_generation",
        "_hold_key",
        "_state",
        "after_release",
        "backend",
        "behind_fence",
        "context",
        "deadline",
        "depth",
        "key",
        "name",
        "options",
        "owner",
        "owner_is_given",
        "renew_at",
        "renewals",
        "renewed",
        "rescheduled",
        "shared_name",
        "site",
        "sync_call",
        "taken_at",
        "token",
        "ttl",
        "unreleased",
        "unsettled",
    )  # fmt: skip

    def __init__(self, lock: SingleLock, owner: str, grant: Grant, context: object) -> None:
        self.name, self.key, self.owner, self.backend = lock.name, lock.key, owner, lock.backend
        self.options = options = lock.options
        # Weak, so that a lease which its thread left behind goes with the thread, and isn't renewed for ever.
        self.context = weakref.ref(context)
        # In a thread that serves `sync_to_async` the call that took it, for other tasks share the thread.
        call = current_sync_call() if isinstance(context, threading.Thread) else None
        self.sync_call = None if call is None else weakref.ref(call)
        self.token, self.ttl, self.renewed = grant.token, lock.ttl, lock.renewed
        self.taken_at = since = grant.since
        self.deadline = since + self.ttl
        self.renew_at = since + self.ttl * RENEW_AFTER
        self.depth = 1
        self.renewals = 0
        self.unreleased = False  # its release has begun, and nobody has answered it
        self.unsettled: set[object] = set()  # the COMMITs under it that the server may still be at work on
        self.site = options.site or caller_site()  # where in the code it was taken
        self.behind_fence = False  # a fenced body has begun: its token is final
        self.shared_name = lock.shares_name  # another process may act for the same client, and take it over
        self.owner_is_given = lock.owner_is_given  # another process may go on under this very owner
        self._state = State.HELD
        self.after_release: Callable[[SingleLease], None] | None = None  # told when the backend has released
        self.rescheduled: Callable[[SingleLease], None] | None = None  # told when `renew_at` comes nearer
        self._generation = PROCESS.generation
        # A semaphore's holder may hold it many times, each time by another owner; any other lock once.
        backend = self.backend
        self._hold_key = (backend.alias, self.key if backend.exclusive else owner, id(context))
        HOLDS[self._hold_key] = self

    def __del__(self) -> None:
        if getattr(self, "renewed", False) and not (
            self.options.min_hold or self.shared_name or self.inherited
        ):
            DROPPED.append((self.backend, self.key, self.owner))
            if self._state in (State.HELD, State.UNKNOWN):
                where = f", acquired at {self.site.describe()}," if self.site is not None else ""
                text = f"the lease of the lock {self.name!r}{where} was dropped: release it, or use `with`"
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

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

    def is_another_calls(self) -> bool:
        """Whether it was taken by a `sync_to_async` call that has ended: perhaps another task's."""
        return self.sync_call is not None and not runs_in(self.sync_call())

    @property
    def inherited(self) -> bool:
        """True in a forked child: the hold is its parent's, and only the parent may end it."""
        return self._generation != PROCESS.generation

    @property
    def open(self) -> bool:
        """Neither released nor found lost so far: its end is still to be reported."""
        return self._state in (State.HELD, State.UNKNOWN) and not self.inherited

    def remaining(self) -> float:
        if self.inherited or self.unreleased or self._state not in (State.HELD, State.UNKNOWN):
            return 0.0
        return 0.0 if self._has_ended() else max(0.0, self.deadline - now())

    def ensure_held(self) -> None:
        if self.inherited:
            raise LockNotOwned(f"{self!r} belongs to the process that forked this one")
        state = self.state
        if state is State.LOST:
            raise self._lost_error()
        if state is State.RELEASED:
            raise LockNotOwned(f"the lock {self.name!r} was released already")
        if self.unreleased:
            raise LockNotOwned(
                f"the release of the lock {self.name!r} was requested but not confirmed: it may be"
                " another's by now"
            )

    def confirm(self) -> None:
        self.ensure_held()
        if not self.shared_name:
            return
        # By an extension to what is left, for that names the owner: `holder` is one of many who read or have
        # a permit, and some engines show none.
        if not self.backend.extend(self.key, self.owner, max(self.remaining(), MIN_TTL)):
            self.lose()
            raise self._lost_error()

    def _lost_error(self) -> LockLost:
        seconds, others = now() - self.taken_at, "another may have it now: discard what was done since"
        which = f"the lock {self.name!r} on backend {self.backend.alias!r}"
        if now() >= self.deadline and not self.options.terms_on(self.backend).renewed:
            return LockExpired(
                f"{which}: ttl={self.ttl:g} isn't renewed and ended before the work did ({seconds:.3f} s);"
                f" leave ttl out, or say renew=True; {others}"
            )
        return LockLost(
            f"{which} was lost {seconds:.3f} s after it was acquired (ttl {self.ttl:g} s): {others}"
        )

    def event(self, outcome: Outcome, *, waited: float | None = None) -> LockEvent:
        """The event that signals send for this lease now."""
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
            template=self.options.template,
        )

    # prolonging

    def extend(self, ttl: Seconds) -> None:
        seconds, since = self._begin_extension(ttl)
        self._extended(self.backend.extend(self.key, self.owner, seconds), since, seconds)

    async def aextend(self, ttl: Seconds) -> None:
        seconds, since = self._begin_extension(ttl)
        self._extended(await self.backend.aextend(self.key, self.owner, seconds), since, seconds)

    def _begin_extension(self, ttl: Seconds) -> tuple[float, float]:
        """Return the ttl in seconds, and the `clock.now()` from before the request."""
        seconds = check_ttl(ttl)
        self.ensure_held()
        return seconds, now()

    def _extended(self, held: bool, since: float, ttl: float) -> None:
        if not held:
            self.lose()
            raise self._lost_error()
        self.ttl = max(self.ttl, ttl)  # before the lease may be renewed again
        self.prolong(since, ttl)
        if self.rescheduled is not None:
            self.rescheduled(self)

    def prolong(self, since: float, ttl: float) -> None:
        """Note that the backend has extended the lease by a request from `since` to `ttl` seconds or more."""
        if since + ttl > self.deadline:
            self.deadline, self.renew_at = since + ttl, since + ttl * RENEW_AFTER
        if self._state is State.UNKNOWN:
            self._state = State.HELD

    # losing

    def doubt(self) -> None:
        """Note that the backend doesn't answer: the lease lives on until its deadline, unconfirmed."""
        if self._state is State.HELD:
            self._state = State.UNKNOWN

    def lose(self) -> None:
        """Note that the lease is over although nobody released it, and tell `on_lost`, once."""
        with _changing:
            if self._state not in (State.HELD, State.UNKNOWN):
                return
            self._state = State.LOST
        events.SAMPLES.append((self.backend.settings.alias, "lost", 0.0))
        notify(lock_lost, lambda: self.event("lost"))
        if self.options.on_lost is not None and not start_thread("locking-on-lost", self._call_on_lost):
            self._call_on_lost()  # a late renewal of others is better than a holder that is not told

    def _call_on_lost(self) -> None:
        """Run the caller's hook in a thread of its own: a slow one must not hold up renewals."""
        assert self.options.on_lost is not None
        try:
            self.options.on_lost(self)
        except Exception:
            logger.exception("on_lost of the lock %r raised", self.name)

    # ending

    def release(self) -> None:
        if not self._leave():
            return
        if self.options.min_hold and (rest := self._rest_of_min_hold()):
            self._ended(self.backend.shorten(self.key, self.owner, rest), "kept", rest)
        else:
            self._ended(self.backend.release(self.key, self.owner), "released")

    async def arelease(self) -> None:
        if not self._leave():
            return
        if self.options.min_hold and (rest := self._rest_of_min_hold()):
            self._ended(await self.backend.ashorten(self.key, self.owner, rest), "kept", rest)
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
        if self.unsettled:
            self._leave_to_commit()
            return False
        self.renewed = False  # before the request, so that no renewal can follow the release
        self.unreleased = True
        return True

    def _leave_to_commit(self) -> None:
        """Leave the lock to its ttl instead of releasing it: the next holder might read what was there before
        a COMMIT that is still under way.
        """
        logger.warning(
            "nobody answered a COMMIT under the lock %r, and it may still be under way: the lock is not"
            " released but ends with its ttl, in %.1f s",
            self.name,
            self.remaining(),
        )
        self.leave_to_expire()
        if self._state is State.LOST:
            raise self._lost_error()

    def _rest_of_min_hold(self) -> float:
        """Return the seconds for which the lock must stay taken although its holder is done."""
        rest = self.taken_at + self.options.min_hold - now()
        return rest if rest >= 0.001 else 0.0

    def _ended(self, was_held: bool, outcome: Outcome, left: float = 0.0) -> None:
        self.unreleased = False
        unregister(self)
        if self.after_release is not None and outcome == "released":
            self.after_release(self)
        if not was_held:
            self.lose()
        if self._state is State.LOST:
            raise self._lost_error()
        self._settle(outcome, left)

    def _settle(self, outcome: Outcome, left: float) -> None:
        """Note the end of the hold; others have to wait for `left` seconds more."""
        self._state = State.RELEASED
        alias, seconds = self.backend.settings.alias, now() - self.taken_at
        events.SAMPLES.append((alias, "ended", seconds))
        events.held(alias, self.options.template, seconds + left)
        if has_listeners(lock_released) or seconds > self.ttl:
            publish(lock_released, self.event(outcome))

    def leave_to_expire(self) -> None:
        if self.depth > 1:
            self.depth -= 1
            return
        self.renewed = False
        unregister(self)
        if self.state is not State.LOST:
            registration.keep(self.owner, PROCESS.date_of(self.deadline))
            self._settle("kept", max(0.0, self.deadline - now()))


class MultiLease(Lease):
    """The leases of several names, held and ended together."""

    def __init__(self, leases: Sequence[SingleLease]) -> None:
        self._leases = tuple(leases)
        self.name = ", ".join(lease.name for lease in leases)
        self.key, self.owner = leases[0].key, leases[0].owner
        self.ttl = min(lease.ttl for lease in leases)
        for lease in leases:
            if lease.depth == 1:  # not entered again: it was acquired for these names
                JOINT_LEASES[lease] = self

    def __repr__(self) -> str:
        return f"<Leases of {self.name}: {self.state.value}, {self.remaining():.3f} s left>"

    @property
    def leases(self) -> Sequence[SingleLease]:
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
        for lease in self._leases:
            lease.ensure_held()

    def confirm(self) -> None:
        for lease in self._leases:
            lease.confirm()

    def extend(self, ttl: Seconds) -> None:
        for lease in self._leases:
            lease.extend(ttl)

    async def aextend(self, ttl: Seconds) -> None:
        for lease in self._leases:
            await lease.aextend(ttl)

    def release(self) -> None:
        """Release every name, last one first; an error is raised after all were tried."""
        raise_worst(release_each(self._leases))

    async def arelease(self) -> None:
        raise_worst(await arelease_each(self._leases))

    def leave_to_expire(self) -> None:
        for lease in self._leases:
            lease.leave_to_expire()


def release_each(leases: Sequence[SingleLease]) -> list[LockError]:
    """Release all of them, last one first, and return what went wrong."""
    errors: list[LockError] = []
    with ExitStack() as each:  # one that a signal interrupts keeps none of the others
        for lease in leases:
            each.callback(_release_noting, lease, errors)
    return errors


def _release_noting(lease: SingleLease, errors: list[LockError]) -> None:
    try:
        lease.release()
    except (LockLost, LockNotOwned, BackendError) as error:
        errors.append(error)


async def arelease_each(leases: Sequence[SingleLease]) -> list[LockError]:
    """`release_each` for asyncio."""
    errors: list[LockError] = []
    async with AsyncExitStack() as each:
        for lease in leases:
            each.push_async_callback(_arelease_noting, lease, errors)
    return errors


async def _arelease_noting(lease: SingleLease, errors: list[LockError]) -> None:
    try:
        await lease.arelease()
    except (LockLost, LockNotOwned, BackendError) as error:
        errors.append(error)


def raise_worst(errors: Sequence[LockError]) -> None:
    """Raise one of the errors of several releases: an outage before all others, for it is to be retried."""
    if errors:
        raise next((error for error in errors if isinstance(error, BackendError)), errors[0])
