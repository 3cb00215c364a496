"""`get_lock` and `Lock`: waiting, re-entry, time limits and clean-up, once for every backend."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from asyncio.events import _get_running_loop
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from typing import Final, Never, Unpack
from weakref import WeakKeyDictionary, ref

from django.core.exceptions import SynchronousOnlyOperation

from locking.backends.base import AsyncWaiter, BaseLockBackend, Busy, Grant, Outcome, Waiter
from locking.core import at_exit, events, holders, waits  # noqa: F401 - it releases at the end of the process
from locking.core.breaker import breaker
from locking.core.dead_processes import watcher
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.core.lease import Lease, MultiLease, SingleLease, State, held_by, is_registered, latest_of
from locking.core.liveness import registration
from locking.core.open_transactions import before_acquiring, in_calling_thread
from locking.core.options import CheckedOptions, LockOptions, shared_options
from locking.core.pending_release import release_retrier
from locking.core.renewal import watchdogs
from locking.exceptions import (
    BackendUnavailable,
    LockDeadlock,
    LockError,
    LockNotAcquired,
    LockNotOwned,
    LockNotSupported,
    TooManyWaiters,
)
from locking.keys.names import UNSET, OnOpenTransaction, Seconds, Unset, check_name, check_names, check_wait
from locking.signals import (
    LONG_WAIT,
    LockEvent,
    has_listeners,
    lock_acquired,
    lock_deadlocked,
    lock_force_released,
    lock_refused,
    notify,
    notify_waiting,
    publish,
)
from locking.utils import logs
from locking.utils.clock import now
from locking.utils.hints import refuse_unknown
from locking.utils.ownership import current_context, is_owner_of, new_owner

logger = logging.getLogger(__name__)

LONGEST_SLEEP: Final = 30.0
"""Seconds after which a waiter asks again whatever it was told: a lost wake-up costs at most this."""


def get_lock(*names: str, **options: Unpack[LockOptions]) -> Lock:
    """Return the lock of these names; nothing is sent until it is acquired.

    Args:
        names: what to lock. Several are taken all or none, sorted, duplicates merged.
        ttl: seconds of the lease; None = `WATCHDOG_TTL` (10), kept alive. Default: the alias's `TTL`.
        renew: keep the lease alive beyond a ttl that is given, as without one.
        wait: seconds that `acquire` waits; 0 = don't, None = without end. Default: the alias's `WAIT`.
        fenced: the database will check the fencing token, so its counter is kept for ever.
        guarded: the work under the lock does no harm even where it overlaps with the next holder's, because
            a condition of the database refuses what is out of date (`UPDATE … WHERE stock >= n`). When the
            process is killed, another one on its host releases the lock at once instead of at the end of its
            lease, although a COMMIT, a child or a command of its may still be at work.
        backend: alias in `LOCKING`.
        min_hold: seconds for which the lock stays taken even if it is released earlier.
        on_lost: called with the lease, in a thread of its own, when the lease is found lost.
        template: what the names of this kind have in common, such as `order:<id>`: metrics and traces group
            by it.
        on_open_transaction: what acquiring does inside an open database transaction, in which the lock would
            be released before COMMIT: `refuse` (LockTransactionError), or `ignore` it. A TestCase's own
            transactions don't count, nor does a lock that is held already. Default: the alias's
            `ON_OPEN_TRANSACTION`.

    Raises:
        LockKeyError: a name that can't be one. ValueError: a ttl, wait or template that can't be one.

    Example:
        >>> with get_lock("order:42", ttl=10, wait=3) as lease:
        ...     lease.ensure_held()
    """
    checked = check_names(names)
    given = shared_options("get_lock", options)
    engine = given.engine()
    return joined([SingleLock(name, engine, given) for name in checked])


def joined(parts: list[SingleLock]) -> Lock:
    """Return the lock of several names, or of the only one."""
    return parts[0] if len(parts) == 1 else MultiLock(parts)


class Lock(ABC):
    """A named lock. `with lock as lease:` never enters its block without the lock.

    One Lock may be shared by threads and tasks: each has its own lease, and the one that holds the lock may
    take it again (its holds are counted).
    """

    name: str
    transaction_on: str | None
    """Alias of the database whose transaction it ends with; None for a lock that is released."""
    on_open_transaction: OnOpenTransaction
    """What acquiring it does inside an open transaction."""
    _wait: float | None

    def __init__(self) -> None:
        self._entered: dict[int, tuple[ref[object], list[Lease], list[Lease]]] = {}
        """By the id of a thread or task: its leases, and those of its blocks, innermost last. The entry goes
        when it does, so no other is taken for it.
        """

    @abstractmethod
    def _take(self, wait: float | None, context: object) -> Lease:
        """Acquire for `context`, the running thread or task, within `wait` seconds, or raise."""

    @abstractmethod
    async def _atake(self, wait: float | None, context: object) -> Lease:
        """`_take` for asyncio."""

    @abstractmethod
    def act_for(self, client_id: str, *, take_over: bool = False) -> None:
        """Acquire for a unit of work that another process may repeat.

        Args:
            client_id: what `identity.client_of_work` made of it.
            take_over: end the hold that an earlier run of the same work may still have. That run, should it
                live, finds the lock lost right before its COMMIT; only `fenced=True` rules the rest out.
        """

    @abstractmethod
    def locked(self) -> bool:
        """Return whether anyone holds the lock (any of its names) at this moment; asks the backend."""

    @abstractmethod
    async def alocked(self) -> bool:
        """`locked` for asyncio."""

    # taking

    def acquire(self, wait: Seconds | Unset | None = UNSET, **others: Never) -> Lease:
        """Wait until the lock is ours and return its lease.

        Args:
            wait: seconds to try, instead of the lock's own; 0 = once, None = without end.

        Raises:
            LockNotAcquired: others held it all the time. BackendUnavailable: nobody answered, or too late for
            the ttl. LockTransactionError: a transaction is open; see `on_open_transaction` of `get_lock`.
            SynchronousOnlyOperation: an event loop runs in this thread, and would stand still.
        """
        if others:
            refuse_unknown("acquire", others, ("wait",))
        if _get_running_loop() is not None:
            _refuse_in_event_loop(self.name)
        context = current_context()
        lease = self._take(self._wait if isinstance(wait, Unset) else check_wait(wait), context)
        self._remember(lease, context)
        return lease

    def try_acquire(self) -> Lease | None:
        """Return a lease at once, or None when someone else has the lock."""
        try:
            return self.acquire(wait=0)
        except LockNotAcquired:
            return None

    async def aacquire(self, wait: Seconds | Unset | None = UNSET) -> Lease:
        """`acquire` for asyncio: waits without a thread."""
        context = current_context()
        lease = await self._atake(self._wait if isinstance(wait, Unset) else check_wait(wait), context)
        self._remember(lease, context)
        return lease

    async def atry_acquire(self) -> Lease | None:
        """`try_acquire` for asyncio."""
        try:
            return await self.aacquire(wait=0)
        except LockNotAcquired:
            return None

    def attempt(self, wait: Seconds | Unset | None = 0.0) -> Attempt:
        """Return a block that is entered with a lease, or with None when the lock was not acquired.

        Args:
            wait: seconds to try; 0 = once, None = without end.

        Raises:
            BackendUnavailable: on entering, when nobody answered.

        Example:
            >>> with get_lock("nightly").attempt() as lease:
            ...     if lease:
            ...         send_report()
        """
        return Attempt(self, wait)

    # the leases of the running thread or task, innermost last

    def _lease(self) -> Lease:
        mine = self._entered.get(id(current_context()))
        if mine is None:
            raise self._not_held()
        _, leases, blocks = mine
        if len(leases) > 1:  # nearly never; what was given back hides nothing that is held
            leases[:] = _unreleased(leases, blocks) or leases[-1:]
        return leases[-1]

    def _remember(self, lease: Lease, context: object) -> None:
        """Put a new lease on the list of `context`."""
        me = id(context)
        mine = self._entered.get(me)
        if mine is None:
            self._entered[me] = (ref(context, partial(_forget_context, ref(self), me)), [lease], [])
            return
        _, leases, blocks = mine
        # What was released by the lease itself goes here: one thread may use the same lock for years.
        leases[:] = _unreleased(leases, blocks)
        leases.append(lease)

    def _forget(self, *, of_block: bool = False) -> Lease:
        """Take the innermost lease off the list and return it; `of_block`: that of the innermost block."""
        me = id(current_context())
        mine = self._entered.pop(me, None)
        if mine is None:
            raise self._not_held()
        _, leases, blocks = mine
        lease = leases.pop(_place_of(blocks.pop(), leases, blocks) if of_block and blocks else -1)
        if leases:
            self._entered[me] = mine
        return lease

    def _begin_block(self, lease: Lease) -> Lease:
        """Note whose lease a `with` block is to release, whatever is acquired inside."""
        self._entered[id(current_context())][2].append(lease)
        return lease

    def _not_held(self) -> LockNotOwned:
        return LockNotOwned(f"the lock {self.name!r} isn't held by this thread or task")

    def release(self) -> None:
        """Release what this thread or task acquired last. LockNotOwned, LockLost: see `Lease.release`."""
        lease = self._lease()
        try:
            lease.release()
        except BackendUnavailable:
            raise  # it may be tried again: an outage must not lose what proves the hold
        except LockError:
            self._forget()
            raise
        self._forget()

    async def arelease(self) -> None:
        """`release` for asyncio."""
        lease = self._lease()
        try:
            await lease.arelease()
        except BackendUnavailable:
            raise
        except LockError:
            self._forget()
            raise
        self._forget()

    def extend(self, ttl: Seconds) -> None:
        """Give the lease `ttl` seconds from now; see `Lease.extend`."""
        self._lease().extend(ttl)

    async def aextend(self, ttl: Seconds) -> None:
        """`extend` for asyncio."""
        await self._lease().aextend(ttl)

    @abstractmethod
    def remaining(self) -> float:
        """Return the seconds left of what this thread or task holds by this name; 0.0 without a lease.

        Whatever acquired it counts, as for re-entry: another object, or the decorator. Of a semaphore, where
        each acquisition takes another permit, it is what this object has acquired.
        """

    def owned(self) -> bool:
        """Return whether this thread or task holds the lock; see `remaining`."""
        return self.remaining() > 0.0

    # `with` and `async with`

    def __enter__(self) -> Lease:
        lease = self.acquire()
        try:
            return self._begin_block(lease)
        except BaseException as error:  # a signal's handler: what was not entered is never left
            self._forget()
            lease._give_back(error)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (lease := self._left_by(error)) is not None:
            lease._give_back(error)

    async def __aenter__(self) -> Lease:
        return self._begin_block(await self.aacquire())

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (lease := self._left_by(error)) is not None:
            await lease._agive_back(error)

    def _left_by(self, error: BaseException | None) -> Lease | None:
        """Take the lease of a block that ends off the list; None where the body released it, and raised.

        A generator that is closed did not raise: it may be closed by another thread than its lock's.
        """
        try:
            return self._forget(of_block=True)
        except LockNotOwned:
            if error is None or isinstance(error, GeneratorExit):
                raise
            return None


def _refuse_in_event_loop(name: str) -> None:
    """Raise as Django does, and do as Django does where that is allowed."""
    if not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(
            f"to wait for the lock {name!r} here would stop the event loop and every task in it: write"
            " `async with` or `await lock.aacquire()`, or call this function through sync_to_async"
        )


def _unreleased(leases: Sequence[Lease], blocks: Sequence[Lease]) -> list[Lease]:
    """Return those that were not released by themselves, and those of blocks, which tell it at their end."""
    return [each for each in leases if each.state is not State.RELEASED or each in blocks]


def _place_of(own: Lease, leases: Sequence[Lease], outer: Sequence[Lease]) -> int:
    """Return where the lease is that a block releases: its own, which is nearly always the last.

    If its own was given back by itself, be it lost by then, it is the last, too, unless that is an outer
    block's: the lock was acquired anew.
    """
    if leases[-1] is own or own not in leases:
        return -1
    if not any(map(is_registered, own.leases)) and leases[-1] not in outer:
        return -1
    return leases.index(own)


def _forget_context(lock: ref[Lock], context: int, _: ref[object]) -> None:
    """Drop the leases of a thread or task that has ended without releasing them: nobody renews them."""
    if (left := lock()) is not None:
        left._entered.pop(context, None)


class Attempt:
    """What `Lock.attempt` returns: `with` and `async with` give a lease, or None."""

    __slots__ = ("_leases", "_lock", "_wait")

    def __init__(self, lock: Lock, wait: Seconds | Unset | None) -> None:
        self._lock, self._wait = lock, wait
        self._leases = WeakKeyDictionary[object, list[Lease | None]]()
        """Of each thread or task that is in the block, innermost last."""

    def __enter__(self) -> Lease | None:
        lease: Lease | None = None
        with suppress(LockNotAcquired):
            lease = self._lock._begin_block(self._lock.acquire(self._wait))
        return self._entered_with(lease)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._left() is not None:
            self._lock.__exit__(kind, error, trace)

    async def __aenter__(self) -> Lease | None:
        lease: Lease | None = None
        with suppress(LockNotAcquired):
            lease = self._lock._begin_block(await self._lock.aacquire(self._wait))
        return self._entered_with(lease)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._left() is not None:
            await self._lock.__aexit__(kind, error, trace)

    def _entered_with(self, lease: Lease | None) -> Lease | None:
        self._leases.setdefault(current_context(), []).append(lease)
        return lease

    def _left(self) -> Lease | None:
        if not (mine := self._leases.get(current_context())):
            raise self._lock._not_held()
        return mine.pop()


class SingleLock(Lock):
    """The lock of one name."""

    def __init__(self, name: str, backend: BaseLockBackend, options: CheckedOptions) -> None:
        super().__init__()
        self.name, self.key = name, backend.key(name)
        self.backend, self.options = backend, options
        terms = options.terms_on(backend)
        self.ttl, self.renewed, self._wait, self.on_open_transaction, self._new_owner = terms
        self.transaction_on = backend.transaction_on
        self.shares_name = self._acts_for_work = False

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} on {self.backend.alias!r}>"

    def act_for(self, client_id: str, *, take_over: bool = False) -> None:
        self._new_owner = partial(new_owner, client_id)
        self.shares_name = self._acts_for_work = True
        if take_over and self.backend.supports_force_release:
            self._end_hold_of(client_id)

    def _end_hold_of(self, client_id: str) -> None:
        """End this client's hold, unless it is the caller's own, who may re-enter."""
        if held_by(current_context(), self.backend.alias, self.key) is not None:
            return
        for owner in self._owners():
            if is_owner_of(client_id, owner):
                self._take_from(owner)

    def _owners(self) -> list[str]:
        """Return the owners that hold the lock."""
        holder = self.backend.holder(self.key)
        return [] if holder is None else [holder.owner]

    def _take_from(self, owner: str) -> bool:
        """End the hold of `owner` and of no newer holder; False when it does not hold the lock any more."""
        broken = self.backend.force_release(self.key, owner)
        if broken:
            alias = self.backend.settings.alias
            event = LockEvent(
                outcome="force_released", name=self.name, key=self.key, backend=alias, owner=owner
            )
            notify(lock_force_released, lambda: event)
        return broken

    def act_as(self, owner: str) -> None:
        """Acquire as exactly this owner: it is granted at once what it holds already.

        An attempt that fails gives back only a grant that it made itself, as far as that is known: what it
        may have held before stays. Should an unanswered request have taken the lock, that ends with its ttl.
        """
        self._new_owner = lambda: owner
        self.shares_name, self._acts_for_work = True, False

    @property
    def owner_is_given(self) -> bool:
        """Whether another process may act under the very same owner; each run of a task has its own."""
        return self.shares_name and not self._acts_for_work

    def locked(self) -> bool:
        return self.backend.holder(self.key) is not None

    async def alocked(self) -> bool:
        return await self.backend.aholder(self.key) is not None

    def remaining(self) -> float:
        hold = self._hold_of(current_context())
        return 0.0 if hold is None or hold.is_another_calls() else hold.remaining()

    def _hold_of(self, context: object) -> SingleLease | None:
        """Return the lease that this thread or task would enter again."""
        return held_by(context, self.backend.alias, self.key)

    def _take(self, wait: float | None, context: object) -> Lease:
        """Re-enter, or enqueue and wait for our turn; after a grant that came too late, begin anew."""
        if hold := self._reenter(context):
            return hold
        if self.on_open_transaction != "ignore":
            before_acquiring(self.on_open_transaction, self.name)
        begun = now()
        while True:
            self._refuse_if_silent()
            owner = self._registered_owner()
            outcome: Outcome | None = None
            waiter = self.backend.waiter(self.key, owner, self.ttl, fenced=self.options.fenced)
            waiter.owner_is_given = self.owner_is_given
            try:
                outcome = waiter.try_acquire(queue=wait != 0)
                if isinstance(outcome, Busy):
                    outcome = self._wait_in(waiter, outcome, begun, wait, context)
                if self._is_late(outcome):
                    since = now()
                    held = self.backend.extend(self.key, waiter.owner or owner, self.ttl)
                    outcome = self._kept(outcome, since, held=held)
                return self._leased(waiter.owner or owner, outcome, context, begun)
            except BaseException as error:
                self._clean_up_after(error, waiter.owner or owner, begun, outcome)
                if self._may_undo(outcome):
                    with self._released_if_unsettled(waiter, owner):
                        waiter.leave()
                if not self._begins_anew(error, begun, wait):
                    raise

    async def _atake(self, wait: float | None, context: object) -> Lease:
        """`_take` for asyncio; a cancelled waiter leaves the queue before the cancellation goes on."""
        if hold := self._reenter(context):
            return hold
        if self.on_open_transaction != "ignore":
            await in_calling_thread(partial(before_acquiring, self.on_open_transaction, self.name))
        begun = now()
        while True:
            self._refuse_if_silent()
            owner = self._registered_owner()
            outcome: Outcome | None = None
            waiter = self.backend.async_waiter(self.key, owner, self.ttl, fenced=self.options.fenced)
            waiter.owner_is_given = self.owner_is_given
            try:
                outcome = await waiter.try_acquire(queue=wait != 0)
                if isinstance(outcome, Busy):
                    outcome = await self._await_in(waiter, outcome, begun, wait, context)
                if self._is_late(outcome):
                    since = now()
                    held = await self.backend.aextend(self.key, waiter.owner or owner, self.ttl)
                    outcome = self._kept(outcome, since, held=held)
                return self._leased(waiter.owner or owner, outcome, context, begun)
            except BaseException as error:
                self._clean_up_after(error, waiter.owner or owner, begun, outcome)
                if self._may_undo(outcome):
                    with self._released_if_unsettled(waiter, owner):
                        await asyncio.shield(waiter.leave())
                if not self._begins_anew(error, begun, wait):
                    raise

    def _begins_anew(self, error: BaseException, begun: float, wait: float | None) -> bool:
        """Whether an attempt that ended in `error` is followed by another, in what is left of the wait."""
        if isinstance(error, BackendUnavailable):
            breaker.ended(self.backend, self.key)
        return isinstance(error, LateGrant) and (wait is None or now() < begun + wait)

    def _is_late(self, grant: Grant) -> bool:
        """Whether the lease may have ended on the way: the process was paused, or the answer came late."""
        return now() >= grant.since + self.ttl

    def _kept(self, grant: Grant, since: float, *, held: bool) -> Grant:
        """Return a late grant whose lease was extended at `since`; LateGrant where it had ended."""
        extended = grant._replace(since=since)
        if held and not self._is_late(extended):
            return extended
        raise LateGrant(
            f"the backend {self.backend.alias!r} granted the lock {self.name!r} too late:"
            f" {now() - grant.since:.3f} s after the request, when the ttl of {self.ttl:g} s was over"
        )

    def _registered_owner(self) -> str:
        """Return a new owner; should this process be killed, others know that what it holds is this one's."""
        if self.backend.alias not in registration.aliases:
            registration.enter(self.backend.settings.alias, self.backend.alias)
        return self._new_owner()

    def _refuse_if_silent(self) -> None:
        """Raise BackendUnavailable at once where the backend's server doesn't answer at the moment."""
        try:
            breaker.admit(self.backend, self.key)
        except BackendUnavailable as error:
            self._note_refusal(error, "", 0.0)
            raise

    def _wait_in(
        self, waiter: Waiter, busy: Busy, begun: float, wait: float | None, context: object
    ) -> Grant:
        outcome: Outcome = busy
        with Waiting(self, busy, context, begun) as watch:
            try:
                while isinstance(outcome, Busy):
                    outcome = watch.wait(waiter, outcome, self._pause(outcome, begun, wait))
            finally:
                watch.end()
        return outcome

    async def _await_in(
        self, waiter: AsyncWaiter, busy: Busy, begun: float, wait: float | None, context: object
    ) -> Grant:
        outcome: Outcome = busy
        with Waiting(self, busy, context, begun) as watch:
            try:
                while isinstance(outcome, Busy):
                    outcome = await watch.await_in(waiter, outcome, self._pause(outcome, begun, wait))
            finally:
                await asyncio.shield(watch.aend())
        return outcome

    def _reenter(self, context: object) -> Lease | None:
        """Count one more hold of what this thread or task has already; a lost hold raises instead."""
        hold = self._hold_of(context)
        return None if hold is None else self._enter_again(hold)

    def _enter_again(self, hold: SingleLease) -> Lease:
        """Count one more hold, unless it may be another task's."""
        hold.ensure_held()
        if hold.is_another_calls():
            raise LockNotSupported(
                f"this thread holds {self.name!r} through another call of sync_to_async, perhaps of another"
                " task: tasks share that thread, so it does not exclude them. Acquire it with `await"
                " lock.aacquire()` or `async with lock`, or acquire and release it within one synchronous"
                " function"
            )
        hold.depth += 1
        return hold

    def _pause(self, busy: Busy, begun: float, wait: float | None) -> float:
        """Return how long to sleep at most; raise LockNotAcquired when the wait has run out."""
        left = LONGEST_SLEEP if wait is None else begun + wait - now()
        if left <= 0:
            if busy.outage is not None:
                raise busy.outage
            raise self.not_acquired(busy, begun)
        lease_end = LONGEST_SLEEP if busy.retry_after is None else busy.retry_after
        return min(left, lease_end, LONGEST_SLEEP)

    def not_acquired(
        self, busy: Busy, begun: float, error: type[LockNotAcquired] = LockNotAcquired, reason: str = ""
    ) -> LockNotAcquired:
        """Return the error of a wait since `begun` that ends with this refusal."""
        alias, waited = self.backend.settings.alias, now() - begun
        ask = waited >= holders.WORTH_A_QUESTION and _get_running_loop() is None
        return error(
            self.name,
            waited=waited,
            backend=alias,
            holder=busy.holder,
            held_by=busy.holder and holders.description(self.backend, busy.holder, ask=ask),
            retry_after=busy.retry_after,
            reason=reason,
            estimate=events.usual_hold(alias, self.options.template),
        )

    def _may_undo(self, first: Outcome | None) -> bool:
        """Whether a hold of our owner can only come from this attempt, so that it may be released.

        Args:
            first: the first answer. Busy says that a given owner held nothing when the attempt began, and a
                grant whether it did.
        """
        if not self.owner_is_given:
            return True
        return first.is_new if isinstance(first, Grant) else first is not None and first.outage is None

    def _clean_up_after(self, error: BaseException, owner: str, begun: float, first: Outcome | None) -> None:
        """Schedule a release unless the attempt was refused or never sent.

        A waiter that is already in the queue may still be handed the lock.
        """
        unsent = isinstance(error, BackendUnavailable) and not error.sent and first is None
        if not isinstance(error, LockNotAcquired) and not unsent and self._may_undo(first):
            release_retrier.schedule(self.backend, self.key, owner, self.ttl)
        waited = now() - begun
        if isinstance(error, BackendUnavailable):
            unanswered = first is None or (isinstance(first, Busy) and first.outage is not None)
            if unanswered and error.silent:
                breaker.failed(self.backend, self.key, waited)
            logs.unavailable(logger, self.backend.settings.alias, error)
        if isinstance(error, LockNotAcquired | BackendUnavailable):
            self._note_refusal(error, owner, waited)

    def _note_refusal(self, error: LockNotAcquired | BackendUnavailable, owner: str, waited: float) -> None:
        """Tell statistics and listeners of an acquisition that came to nothing."""
        events.SAMPLES.append((self.backend.settings.alias, "refused", waited))
        deadlock = isinstance(error, LockDeadlock)
        if deadlock:
            events.SAMPLES.append((self.backend.settings.alias, "deadlock", waited))
        signal = lock_deadlocked if deadlock else lock_refused
        notify(signal, lambda: self._refusal(error, owner, waited))

    @contextmanager
    def _released_if_unsettled(self, waiter: Waiter | AsyncWaiter, owner: str) -> Iterator[None]:
        """A waiter that is interrupted while it leaves the queue, or gets no answer, may have been handed the
        lock unseen.
        """
        unsettled = True
        try:
            yield
            unsettled = waiter.unsettled
        finally:
            if unsettled:
                release_retrier.schedule(self.backend, self.key, waiter.owner or owner, self.ttl)

    def _refusal(self, error: LockNotAcquired | BackendUnavailable, owner: str, waited: float) -> LockEvent:
        contended = isinstance(error, LockNotAcquired)
        deadlock = isinstance(error, LockDeadlock)
        return LockEvent(
            outcome="deadlock" if deadlock else "contended" if contended else "unavailable",
            name=self.name,
            key=self.key,
            backend=self.backend.alias,
            owner=owner,
            waited=waited,
            holder=getattr(error, "holder", None),
            template=self.options.template,
            reason=getattr(error, "reason", None) if deadlock else None,
        )

    def _leased(self, owner: str, grant: Grant, context: object, begun: float) -> SingleLease:
        lease = SingleLease(self, owner, grant, context)
        alias, waited = self.backend.settings.alias, now() - begun
        breaker.answered(self.backend, self.key)
        events.acquired(alias, waited)
        if logs.TROUBLES:
            logs.available(logger, alias)
        if grant.resent and self._may_undo(None):
            lease.after_release = _release_again
        if self.renewed:
            lease.rescheduled = watchdogs.watch
            watchdogs.watch(lease)
        if has_listeners(lock_acquired) or waited >= LONG_WAIT:
            publish(lock_acquired, lease.event("acquired", waited=waited))
        return lease


class LateGrant(BackendUnavailable):
    """The lock was granted, and the lease had ended by the time the grant arrived: nobody may rely on it."""


class Waiting:
    """A wait that counts, and of which observers hear, for as long as the block runs.

    A signal handler may raise anywhere but between `__enter__` and the block. A generator would cost more.
    """

    __slots__ = ("_begin", "_lock")

    def __init__(self, lock: SingleLock, busy: Busy, context: object, begun: float) -> None:
        self._lock, self._begin = lock, (busy, context, begun)

    def __enter__(self) -> waits.WaitWatch:
        lock, (busy, context, begun) = self._lock, self._begin
        settings = lock.backend.settings
        if busy.outage is None:
            breaker.answered(lock.backend, lock.key)
        if not waits.waiters.enter(settings.alias, settings.max_waiters):
            reason = f"{settings.max_waiters} waiters in this process already (MAX_WAITERS)"
            raise lock.not_acquired(busy, begun, TooManyWaiters, reason)
        try:
            notify_waiting(lock.name, lock.options.template, lock.backend.alias, 1)
            watcher.look()
            return waits.watch(lock, context, begun)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        lock = self._lock
        waits.waiters.leave(lock.backend.settings.alias)
        notify_waiting(lock.name, lock.options.template, lock.backend.alias, -1)


def _release_again(lease: SingleLease) -> None:
    """Release once more, later: a request without a reply may have arrived after the release."""
    release_retrier.schedule(lease.backend, lease.key, lease.owner, lease.ttl)


class MultiLock(Lock):
    """Several names, all or none: taken in sorted order, so that two callers can't wait for each other."""

    def __init__(self, parts: list[SingleLock]) -> None:
        super().__init__()
        self._parts = parts
        self._wait, self.transaction_on = parts[0]._wait, parts[0].transaction_on
        self.on_open_transaction = parts[0].on_open_transaction
        self.name = ", ".join(part.name for part in parts)

    def __repr__(self) -> str:
        return f"<Lock of {self.name}>"

    def act_for(self, client_id: str, *, take_over: bool = False) -> None:
        for part in self._parts:
            part.act_for(client_id, take_over=take_over)

    def locked(self) -> bool:
        return any(part.locked() for part in self._parts)

    async def alocked(self) -> bool:
        for part in self._parts:
            if await part.alocked():
                return True
        return False

    def remaining(self) -> float:
        """See `Lock.remaining`: of the name whose lease ends first."""
        return min(part.remaining() for part in self._parts)

    def _take(self, wait: float | None, context: object) -> Lease:
        begun = now()
        taken: list[Lease] = []
        try:
            for part in self._parts:
                taken.append(part._take(_left(begun, wait), context))
            for lease in taken:
                lease.ensure_held()  # the first may have ended while we waited for the last
        except BaseException as error:
            with ExitStack() as undo:
                for lease in taken:
                    undo.callback(lease._give_back, error)
            raise
        return _together(taken)

    async def _atake(self, wait: float | None, context: object) -> Lease:
        begun = now()
        taken: list[Lease] = []
        try:
            for part in self._parts:
                taken.append(await part._atake(_left(begun, wait), context))
            for lease in taken:
                lease.ensure_held()
        except BaseException as error:
            await asyncio.shield(_agive_all_back(taken, error))
            raise
        return _together(taken)


async def _agive_all_back(taken: Sequence[Lease], error: BaseException) -> None:
    """Release all of them in one go, which a second cancellation of the task leaves running."""
    async with AsyncExitStack() as undo:
        for lease in taken:
            undo.push_async_callback(lease._agive_back, error)


def _left(begun: float, wait: float | None) -> float | None:
    """Return what is left of one wait that all names share."""
    return wait if not wait else max(0.0, begun + wait - now())


def _together(taken: list[Lease]) -> MultiLease:
    return MultiLease([single for lease in taken for single in lease.leases])


def assert_locked(*names: str, backend: str = DEFAULT_ALIAS) -> None:
    """Raise LockNotOwned unless the running thread or task holds every one of `names`.

    For code that is only right under a lock which its caller must have taken.

    Example:
        >>> def refill(sku):
        ...     assert_locked(f"sku:{sku}")
    """
    for name in check_names(names):
        lease = _held(name, backend)
        if lease is None:
            raise LockNotOwned(f"this code needs the lock {name!r}, which this thread or task doesn't hold")
        lease.ensure_held()


def _held(name: str, backend: str) -> SingleLease | None:
    engine = locks[backend]
    return held_by(current_context(), engine.alias, engine.key(name))


def current_lease(name: str | None = None, *, backend: str = DEFAULT_ALIAS) -> Lease:
    """Return the lease that the running thread or task holds: inside a decorated function, its lock's.

    Args:
        name: of which lock; None = the one acquired last, on any backend: of several names, if it has them.
            A lock that was entered again counts from its first acquisition.
        backend: alias in `LOCKING`, where a name is given.

    Raises:
        LockNotOwned: this thread or task doesn't hold it.

    Example:
        >>> @distributed_lock(key="order:{order_id}", ttl=10)
        ... def pay(order_id):
        ...     current_lease().extend(60)
    """
    lease = latest_of(current_context()) if name is None else _held(check_name(name), backend)
    if lease is None:
        which = "no lock" if name is None else f"not the lock {name!r}"
        raise LockNotOwned(
            f"this thread or task holds {which}; call it in the body of a locked function or block"
        )
    return lease
