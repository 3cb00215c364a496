"""One time-limited grant of a lock, from its acquisition to its end.

A lease is held, unknown (the backend doesn't answer, and its local deadline hasn't passed), lost, or
released. Its deadline is counted on the local clock from before the request was sent, so it never outlives
the server's.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Final, NamedTuple, Self
from weakref import ref

from locking.backends.base import BaseLockBackend, Grant
from locking.backends.capabilities import SessionBound
from locking.core.pending_release import release_retrier
from locking.exceptions import (
    BackendError,
    BackendUnavailable,
    LockError,
    LockExpired,
    LockLost,
    LockNotOwned,
)
from locking.keys.names import MIN_TTL, OnOpenTransaction, Seconds, check_ttl
from locking.signals import COUNTED, Outcome, is_heard, lock_lost, lock_released, notify, publish, tell
from locking.utils import logs
from locking.utils.background import after_fork, start_thread
from locking.utils.call_site import CallSite, caller_site
from locking.utils.clock import now
from locking.utils.ownership import PROCESS, current_sync_call, runs_in

logger = logging.getLogger(__name__)


class State(enum.Enum):
    """What is known of a lease."""

    HELD = "held"
    UNKNOWN = "unknown"
    LOST = "lost"
    RELEASED = "released"


OPEN: Final = (State.HELD, State.UNKNOWN)

RENEW_AFTER = 0.3  # share of its ttl after which a lease is renewed: a few more attempts fit in if one fails


class LeaseTerms(NamedTuple):
    """What is agreed on when a lock is acquired: see `get_lock`."""

    name: str
    key: str
    backend: BaseLockBackend
    ttl: float
    renewed: bool  # kept alive
    wait: float | None
    fenced: bool
    guarded: bool
    permits: int | None
    min_hold: float
    on_lost: Callable[[Lease], None] | None
    template: str | None
    on_open_transaction: OnOpenTransaction
    site: CallSite | None  # the function that a decorator locks; None = the line that acquires
    shared_name: bool = False  # another process may act for the same client, and take the lease over
    owner_is_given: bool = False  # another process may act under the very same owner


# --- what this process holds ------------------------------------------------------------------------------

HoldKey = tuple[str, str, int]

HOLDS: Final[dict[HoldKey, ref[SingleLease]]] = {}
"""What this process holds. Weak: a lease that nothing refers to isn't renewed, and so ends by itself."""

DROPPED: Final[deque[tuple[BaseLockBackend, str, str]]] = deque(maxlen=1000)
"""Backend, key and owner of renewed leases that nothing refers to any more, for the end of the process."""

after_fork(HOLDS.clear)
after_fork(DROPPED.clear)

_changing = threading.Lock()
after_fork(_changing._at_fork_reinit)  # type: ignore[attr-defined]


def held_by(context: object, alias: str, key: str) -> SingleLease | None:
    """Return the lease by which a thread or task holds `key`, if it does."""
    # One whose release was not confirmed isn't counted: on the server it may be another's by now.
    found = HOLDS.get((alias, key, id(context)))
    lease = None if found is None else found()
    if lease is None or lease.unreleased:
        return None
    # The id of a thread that has ended may be another's by now: only the object itself tells.
    return lease if lease.context() is context else None


def live_leases() -> list[SingleLease]:
    """Return the leases of this process; `list` copies in one step, for other threads add some meanwhile."""
    return [lease for found in list(HOLDS.values()) if (lease := found()) is not None]


def leases_of(context: object) -> list[SingleLease]:
    """Return the open leases of a thread or task, the oldest first."""
    mine = [lease for lease in live_leases() if lease.context() is context and lease.open]
    return sorted(mine, key=lambda lease: lease.taken_at)


def unregister(lease: SingleLease) -> None:
    """Take `lease`, and no newer lease of the same thread and key, out of what this process holds."""
    found = HOLDS.get(lease._hold_key)  # not by `registered`: each release comes here
    if found is not None and found() is lease:
        del HOLDS[lease._hold_key]


# --- how long locks are held: what a refusal estimates its `Retry-After` by ---------------------------------

WEIGHT: Final = 0.2  # share of the latest hold in the moving average: about the last ten holds count
MOST_GROUPS: Final = 1_000  # templates of which the usual time is kept; further ones count for their alias

_USUAL: Final[dict[tuple[str, str | None], float]] = {}
after_fork(_USUAL.clear)


def note_hold(alias: str, template: str | None, seconds: float) -> None:
    """Note that a lock was held for so long: from its grant until others could have it."""
    group = (alias, template)
    before = _USUAL.get(group)
    if before is None:
        group = group if len(_USUAL) < MOST_GROUPS else (alias, None)
        before = _USUAL.get(group, seconds)
    _USUAL[group] = before + WEIGHT * (seconds - before)


def usual_hold(alias: str, template: str | None) -> float | None:
    """Return the seconds for which locks of this template were held lately in this process, if any were."""
    return _USUAL.get((alias, template))


# --- leases -----------------------------------------------------------------------------------------------


class Lease:
    """What `acquire` returns: proof of a hold, and the way to ask for its state, prolong it and end it.

    Of several names it is one lease for all of them, held and ended together; `SingleLease` is that of one.
    """

    __slots__ = ("__weakref__", "_leases", "key", "name", "owner", "ttl")
    name: str
    key: str
    """Where the backend keeps it; of the first of several names, as `owner` is."""
    owner: str
    """The identity that proves the hold, unique to it."""
    ttl: float

    def __init__(self, leases: Sequence[SingleLease]) -> None:
        self._leases = tuple(leases)
        self.name = ", ".join(lease.name for lease in leases)
        self.key, self.owner = leases[0].key, leases[0].owner
        self.ttl = min(lease.ttl for lease in leases)
        for lease in leases:
            if lease.depth == 1:  # not entered again: it was acquired for these names
                lease.joint = ref(self)

    def __repr__(self) -> str:
        return f"<Lease of {self.name}: {self.state.value}, {self.remaining():.3f} s left>"

    @property
    def leases(self) -> Sequence[SingleLease]:
        """The leases of the single names, in the order in which they were taken."""
        return self._leases

    @property
    def state(self) -> State:
        """Held, unknown, lost or released; asks no server, so it is as fresh as the last answer.

        Of several names the worst: one lost name is enough to stop.
        """
        states = {lease.state for lease in self._leases}
        return next(s for s in (State.LOST, State.RELEASED, State.UNKNOWN, State.HELD) if s in states)

    def remaining(self) -> float:
        """Return the seconds that are surely left, by the local clock; 0.0 when there are none."""
        return min(lease.remaining() for lease in self._leases)

    @property
    def registered(self) -> bool:
        """Whether this process holds any of it: until it is given back, also where it is lost."""
        return any(lease.registered for lease in self._leases)

    def ensure_held(self) -> None:
        """Raise LockLost if the lease has ended or may have; call it before what can't be undone."""
        for lease in self._leases:
            lease.ensure_held()

    def confirm(self) -> None:
        """`ensure_held` right before COMMIT: a lease that may have been taken over also asks the backend."""
        for lease in self._leases:
            lease.confirm()

    def extend(self, ttl: Seconds) -> None:
        """Have the lease last for `ttl` seconds from now, if it doesn't last longer: it is never shortened.

        Raises:
            LockLost: it had ended already and stays ended. BackendUnavailable: no answer.
        """
        for lease in self._leases:
            lease.extend(ttl)

    async def aextend(self, ttl: Seconds) -> None:
        """`extend` for asyncio."""
        for lease in self._leases:
            await lease.aextend(ttl)

    def release(self) -> None:
        """Release the lock. LockLost: it had ended before; LockNotOwned: it was released already.

        Of several names the last goes first; an error is raised after all were tried.
        """
        errors: list[LockError] = []
        with ExitStack() as each:  # one that a signal interrupts keeps none of the others
            for lease in self._leases:
                each.push(partial(_noted, errors))
                each.callback(lease.release)
        _raise_worst(errors)

    async def arelease(self) -> None:
        """`release` for asyncio."""
        errors: list[LockError] = []
        async with AsyncExitStack() as each:
            for lease in self._leases:
                each.push(partial(_noted, errors))
                each.push_async_callback(lease.arelease)
        _raise_worst(errors)

    def leave_to_expire(self) -> None:
        """Stop renewing and leave the lock to its ttl: it stays locked until then."""
        for lease in self._leases:
            lease.leave_to_expire()

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
        except BaseException as failure:
            if not self._is_settled(failure, body_error):
                raise

    async def _agive_back(self, body_error: BaseException | None) -> None:
        """`_give_back` for asyncio: a cancellation that arrives now must not leave the lock taken."""
        try:
            await self.arelease()
        except BaseException as failure:
            if not self._is_settled(failure, body_error):
                raise

    def _is_settled(self, failure: BaseException, body_error: BaseException | None) -> bool:
        """Whether a release that failed is settled when a `with` block is left, and need not be raised."""
        # The body's own error is never masked, and an outage never spoils its result: a lock that can't be
        # released ends with its ttl. One that was lost is an error of its own, unless the body has raised.
        if not isinstance(failure, LockError):  # a signal, a cancellation: the request may have arrived
            self.release_later()
        if isinstance(failure, BackendError):
            self.release_later(failure)
            lost = [single for single in self.leases if single.state is State.LOST]
            if lost and body_error is None:
                lost[0].ensure_held()
            return True
        if isinstance(failure, LockNotOwned) and all(single.inherited for single in self.leases):
            return True  # a forked child leaves its parent's block
        # A loss was logged when it was found; and the body may have released the lock before it raised.
        return isinstance(failure, LockLost | LockNotOwned) and body_error is not None

    def release_later(self, failure: BackendError | None = None) -> None:
        """Retry a release that failed, once the backend answers again; a failure is logged once a minute."""
        if failure is not None:
            for alias in dict.fromkeys(single.backend.settings.alias for single in self.leases):
                logs.unavailable(logger, alias, failure)
            logger.info("releasing %r failed (%s); it is retried", self, failure)
        for single in self.leases:
            # A given owner may be another process's by then, and a min_hold isn't over yet.
            if single.unreleased and not (single.terms.owner_is_given or single.terms.min_hold):
                release_retrier.schedule(single.backend, single.key, single.owner, single.ttl)

    def __bool__(self) -> bool:
        """True, so that `if lock.try_acquire():` reads as it should."""
        return True


class SingleLease(Lease):
    """The lease of one name."""

    __slots__ = (
        "_generation", "_hold_key", "_state", "backend", "context", "deadline", "depth",
        "joint", "renew_at", "renewals", "renewed", "rescheduled", "resent", "site", "sync_call", "taken_at",
        "terms", "token", "unreleased", "unsettled",
    )  # fmt: skip

    def __init__(self, terms: LeaseTerms, owner: str, grant: Grant, context: object) -> None:
        self.name, self.key, self.backend, self.ttl = terms.name, terms.key, terms.backend, terms.ttl
        self.terms, self.owner, self.token = terms, owner, grant.token
        # Weak, so that a lease which its thread left behind goes with the thread, and isn't renewed forever.
        self.context = ref(context)
        # In a thread that serves `sync_to_async` the call that took it, for other tasks share the thread.
        call = current_sync_call() if isinstance(context, threading.Thread) else None
        self.sync_call = None if call is None else ref(call)
        self.renewed = terms.renewed
        self.taken_at = since = grant.since
        self.deadline = since + self.ttl
        self.renew_at = since + self.ttl * RENEW_AFTER
        self.depth = 1
        self.renewals = 0
        self.unreleased = False  # its release has begun, and was not confirmed
        self.unsettled: set[object] = set()  # the COMMITs under it that the server may still be at work on
        self.site = terms.site or caller_site()  # where in the code it was taken
        self.joint: ref[Lease] | None = None  # the lease of several names that it is a part of
        self._state = State.HELD
        self.resent = grant.resent and not terms.owner_is_given  # a request may arrive after the release
        self.rescheduled: Callable[[SingleLease], None] | None = None  # called when `renew_at` comes nearer
        self._generation = PROCESS.generation
        # A semaphore's holder may hold it many times, each time by another owner; any other lock once.
        backend = self.backend
        self._hold_key = (backend.alias, self.key if backend.exclusive else owner, id(context))
        HOLDS[self._hold_key] = ref(self)

    def __del__(self) -> None:
        found = HOLDS.get(key := self._hold_key)
        if found is not None and found() is None:
            HOLDS.pop(key, None)
        if self.renewed and not (self.terms.min_hold or self.terms.shared_name or self.inherited):
            DROPPED.append((self.backend, self.key, self.owner))
            if self._state in OPEN:
                where = f", acquired at {self.site.describe()}," if self.site is not None else ""
                text = f"the lease of the lock {self.name!r}{where} was dropped: release it, or use `with`"
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        where = f"{self.name!r} on {self.backend.alias!r}"
        return f"<Lease of {where}: {self.state.value}, {self.remaining():.3f} s left>"

    @property
    def leases(self) -> Sequence[SingleLease]:
        return (self,)

    @property
    def state(self) -> State:
        """See `Lease.state`; with its deadline or session it is lost, an unconfirmed release is unknown."""
        if self.open:
            if self._has_ended():
                self.lose()
            elif self.unreleased or (isinstance(self.backend, SessionBound) and not self.backend.in_touch()):
                return State.UNKNOWN
        return self._state

    def _has_ended(self) -> bool:
        """Whether the ttl is over, or the session that the hold depends on may be."""
        moment, backend = now(), self.backend
        if moment >= self.deadline:
            return True
        return isinstance(backend, SessionBound) and moment >= backend.hold_ends(self.key, self.owner)

    @property
    def registered(self) -> bool:
        found = HOLDS.get(self._hold_key)
        return found is not None and found() is self

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
        return self._state in OPEN and not self.inherited

    def remaining(self) -> float:
        if self.unreleased or not self.open or self._has_ended():
            return 0.0
        return max(0.0, self.deadline - now())

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
        if not self.terms.shared_name:
            return
        # By an extension to what is left, for that names the owner: `holder` is one of many who read or have
        # a permit, and some engines show none.
        if not self.backend.extend(self.key, self.owner, max(self.remaining(), MIN_TTL)):
            self.lose()
            raise self._lost_error()

    def _lost_error(self) -> LockLost:
        seconds, others = now() - self.taken_at, "another may have it now: discard what was done since"
        which = f"the lock {self.name!r} on backend {self.backend.alias!r}"
        if now() >= self.deadline and not self.terms.renewed:
            return LockExpired(
                f"{which}: ttl={self.ttl:g} isn't renewed and ended before the work did ({seconds:.3f} s);"
                f" leave ttl out, or say renew=True; {others}"
            )
        return LockLost(
            f"{which} was lost {seconds:.3f} s after it was acquired (ttl {self.ttl:g} s): {others}"
        )

    def facts(self, outcome: Outcome) -> dict[str, object]:
        """Return what an event says of this lease now."""
        return {
            "outcome": outcome, "name": self.name, "key": self.key, "backend": self.backend.alias,
            "owner": self.owner, "token": self.token, "ttl": self.ttl, "template": self.terms.template,
        }  # fmt: skip

    # prolonging

    def extend(self, ttl: Seconds) -> None:
        seconds, since = check_ttl(ttl), now()  # before the request
        self.ensure_held()
        self._extended(self.backend.extend(self.key, self.owner, seconds), since, seconds)

    async def aextend(self, ttl: Seconds) -> None:
        seconds, since = check_ttl(ttl), now()
        self.ensure_held()
        self._extended(await self.backend.aextend(self.key, self.owner, seconds), since, seconds)

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

    def mark_unknown(self) -> None:
        """Note that the backend doesn't answer: the lease lives on until its deadline, unconfirmed."""
        if self._state is State.HELD:
            self._state = State.UNKNOWN

    def lose(self) -> None:
        """Note that the lease is over although it was not released, and call `on_lost`, once."""
        with _changing:
            if self._state not in OPEN:
                return
            self._state = State.LOST
        tell("counted", self.backend.settings.alias, "lost")
        notify(lock_lost, held=now() - self.taken_at, **self.facts("lost"))
        on_lost = self.terms.on_lost
        if on_lost is None:
            return

        def call() -> None:
            try:
                on_lost(self)
            except Exception:
                logger.exception("on_lost of the lock %r raised", self.name)

        if not start_thread("locking-call-on-lost", call):  # a slow hook must not hold up renewals
            call()  # a late renewal of others is better than a holder that is not informed

    # ending

    def release(self) -> None:
        if not self._begin_release():
            return
        if self.terms.min_hold and (rest := self._rest_of_min_hold()):
            self._ended(self.backend.shorten(self.key, self.owner, rest), "kept", rest)
        else:
            self._ended(self.backend.release(self.key, self.owner), "released")

    async def arelease(self) -> None:
        if not self._begin_release():
            return
        if self.terms.min_hold and (rest := self._rest_of_min_hold()):
            shorten = self.backend.ashorten(self.key, self.owner, rest)
            self._ended(await asyncio.shield(shorten), "kept", rest)  # none retries it after a cancellation
        else:
            self._ended(await self.backend.arelease(self.key, self.owner), "released")

    def _begin_release(self) -> bool:
        """Leave one level of re-entry; True when it was the outermost, so that the backend must be asked."""
        if self._generation != PROCESS.generation:
            raise LockNotOwned(
                f"{self!r} belongs to the process that forked this one: it isn't released here"
            )
        if self._state is State.RELEASED:
            raise LockNotOwned(f"the lock {self.name!r} was released already")
        if self.depth > 1:
            self.depth -= 1
            return False
        if self.unsettled:
            logger.warning(  # the next holder might read what was there before that COMMIT
                "the answer to a COMMIT under the lock %r is missing, and it may still be under way: the lock"
                " is not released but ends with its ttl, in %.1f s",
                self.name,
                self.remaining(),
            )
            self.leave_to_expire()
            if self._state is State.LOST:
                raise self._lost_error()
            return False
        self.renewed = False  # before the request, so that no renewal can follow the release
        self.unreleased = True
        return True

    def _rest_of_min_hold(self) -> float:
        """Return the seconds for which the lock must stay taken although its holder is done."""
        rest = self.taken_at + self.terms.min_hold - now()
        return rest if rest >= 0.001 else 0.0

    def _ended(self, was_held: bool, outcome: Outcome, left: float = 0.0) -> None:
        """Note the answer to the release: others have to wait for `left` seconds more."""
        self.unreleased = False
        unregister(self)
        if self.resent and outcome == "released":
            release_retrier.schedule(self.backend, self.key, self.owner, self.ttl)
        if not was_held:
            self.lose()
        if self._state is State.LOST:
            raise self._lost_error()
        self._state = State.RELEASED
        alias, seconds = self.backend.settings.alias, now() - self.taken_at
        for counted in COUNTED:
            counted(alias, "ended")
        note_hold(alias, self.terms.template, seconds + left)
        level = logging.INFO if outcome == "released" and seconds > self.ttl else logging.DEBUG
        if is_heard(lock_released, level):
            publish(lock_released, level, held=seconds, **self.facts(outcome))

    def leave_to_expire(self) -> None:
        if self.depth > 1:
            self.depth -= 1
            return
        self.renewed = False
        if self.state is State.LOST:
            unregister(self)
            return
        tell("kept", self.owner, PROCESS.date_of(self.deadline))
        self._ended(True, "kept", max(0.0, self.deadline - now()))


def _noted(errors: list[LockError], kind: object, error: BaseException | None, trace: object) -> bool:
    """Keep what one of several releases raises, as the `__exit__` of a block, until all were tried."""
    if noted := isinstance(error, LockLost | LockNotOwned | BackendError):
        errors.append(error)
    return noted


def _raise_worst(errors: Sequence[LockError]) -> None:
    """Raise one of the errors of several releases: an outage before all others, for it is to be retried."""
    if errors:
        raise next((error for error in errors if isinstance(error, BackendError)), errors[0])


# --- the end of the process ---------------------------------------------------------------------------------


def exit_on_sigterm() -> bool:
    """Have SIGTERM end the main thread like Ctrl-C, so that `with` blocks are left and locks released.

    Without a handler the signal ends a Python process at once. Web servers and Celery have handlers of their
    own; call this from scripts and management commands.

    Returns:
        False when the signal has a handler already, which stays.

    Raises:
        ValueError: called outside the main thread.

    Example:
        >>> exit_on_sigterm()  # doctest: +SKIP
        True
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return True


def release_what_is_left() -> None:
    """Release the leases of finished threads and tasks, and leave the others to their end."""
    # One whose holder may still be at work, in a daemon thread, expires or, where it is guarded, is released
    # by another process of the host.
    left: list[tuple[BaseLockBackend, Callable[[], object]]] = []
    for lease in live_leases():
        if lease.open and not lease.unreleased and _is_finished(lease.context()):
            lease.depth = 1  # however often it was entered
            left.append((lease.backend, lease.release))
    while DROPPED:  # by functions that have returned
        backend, key, owner = DROPPED.popleft()
        left.append((backend, partial(backend.release, key, owner)))
    silent: set[str] = set()
    for backend, release in left:
        alias = backend.settings.alias
        try:
            if alias not in silent:
                release()
        except BackendUnavailable:
            silent.add(alias)
        except Exception as error:  # the interpreter is ending, and so may be what a release needs
            logger.debug("at the end of the process a lock on %r could not be released: %s", alias, error)


def _is_finished(context: object) -> bool:
    """Whether a thread or task can do nothing any more under its lock; the main thread is here."""
    if isinstance(context, asyncio.Task):
        return context.done() or context.get_loop().is_closed()
    if isinstance(context, threading.Thread):
        return context is threading.current_thread() or not context.is_alive()
    return context is None
