"""`get_lock` and `Lock`: waiting, re-entry, time limits and clean-up, once for every backend."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Never, Unpack
from weakref import ref

from django.core.exceptions import SynchronousOnlyOperation

from locking import signals
from locking.backends.base import AsyncWaiter, BaseLockBackend, Busy, Grant, Holder, Outcome, Waiter
from locking.backends.capabilities import ForceRelease
from locking.core import waits
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.core.lease import HOLDS, Lease, SingleLease, held_by, live_leases, usual_hold
from locking.core.open_transactions import in_calling_thread, refuse_open_transactions
from locking.core.options import CheckedOptions, LockOptions, refuse_unknown, shared_options
from locking.core.pending_release import release_retrier
from locking.core.renewal import watchdogs
from locking.core.waits import breaker
from locking.exceptions import (
    BackendUnavailable,
    LockDeadlock,
    LockNotAcquired,
    LockNotOwned,
    LockNotSupported,
    TooManyWaiters,
)
from locking.keys.names import UNSET, OnOpenTransaction, Seconds, Unset, check_name, check_names, check_wait
from locking.utils import logs
from locking.utils.clock import now
from locking.utils.ownership import current_context, is_owner_of, new_guarded_owner, new_owner

logger = logging.getLogger(__name__)

AnyWaiter = Waiter | AsyncWaiter

LONGEST_SLEEP: Final = 30.0  # seconds after which a waiter asks again: a lost wake-up costs at most this


def get_lock(*names: str, **options: Unpack[LockOptions]) -> Lock:
    """Return the lock of these names; nothing is sent until it is acquired.

    Args:
        names: what to lock. Several are taken all or none, sorted, duplicates merged.
        ttl: seconds of the lease; None = `WATCHDOG_TTL` (10), kept alive. Default: the alias's `TTL`.
        renew: keep the lease alive beyond a ttl that is given, as without one.
        wait: seconds that `acquire` waits; 0 = don't, None = without end. Default: the alias's `WAIT`.
        fenced: the database will check the fencing token, so its counter is kept forever.
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
    given = shared_options("get_lock", options)
    if len(names) == 1:
        return SingleLock(check_name(names[0]), given)
    return joined([SingleLock(name, given) for name in check_names(names)])


Entry = tuple[Lease | None, bool]
"""A lease, or None of a block that was entered without the lock; and whether it is a block's."""


def joined(parts: Sequence[SingleLock]) -> Lock:
    """Return the lock of several names, or of the only one."""
    return parts[0] if len(parts) == 1 else Lock(parts)


class Lock:
    """A named lock. `with lock as lease:` never enters its block without the lock.

    One Lock may be shared by threads and tasks: each has its own lease, and the one that holds the lock may
    take it again (its holds are counted). Of several names all are taken or none, in sorted order, so that
    two callers can't wait for each other; `SingleLock` is that of one.
    """

    name: str
    transaction_on: str | None
    """Alias of the database whose transaction it ends with; None for a lock that is released."""
    on_open_transaction: OnOpenTransaction
    """What acquiring it does inside an open transaction."""
    _wait: float | None
    _entered: dict[int, tuple[ref[object], list[Entry]]]
    """By the id of a thread or task: what it has acquired, innermost last. The entry goes when it does, so no
    other is taken for it."""

    def __init__(self, parts: Sequence[SingleLock]) -> None:
        self._parts = parts
        self._wait, self.transaction_on = parts[0]._wait, parts[0].transaction_on
        self.on_open_transaction = parts[0].on_open_transaction
        self.name = ", ".join(part.name for part in parts)
        self._entered = {}

    def __repr__(self) -> str:
        return f"<Lock of {self.name}>"

    def act_for(self, client_id: str, *, take_over: bool = False) -> None:
        """Acquire for a unit of work that another process may repeat.

        Args:
            client_id: what `identity.client_of_work` made of it.
            take_over: end the hold that an earlier run of the same work may still have. That run, should it
                live, finds the lock lost right before its COMMIT; only `fenced=True` rules the rest out.
        """
        for part in self._parts:
            part.act_for(client_id, take_over=take_over)

    def locked(self) -> bool:
        """Return whether anyone holds the lock (any of its names) at this moment; asks the backend."""
        return any(part.locked() for part in self._parts)

    async def alocked(self) -> bool:
        """`locked` for asyncio."""
        return any([await part.alocked() for part in self._parts])

    async def _take(self, wait: float | None, context: object, *, is_task: bool) -> Lease:
        """Acquire for `context`, the running thread or task, within `wait` seconds, or raise."""
        # Only a task's steps suspend. Those of a thread have come to their end when they return, so that one
        # `send` carries this out.
        begun = now()
        taken: list[Lease] = []
        try:
            for part in self._parts:
                left = max(0.0, begun + wait - now()) if wait else wait  # of one wait that all names share
                taken.append(await part._take(left, context, is_task=is_task))
            for lease in taken:
                lease.ensure_held()  # the first may have ended while we waited for the last
        except BaseException as error:
            if taken and is_task:  # in one go, which a second cancellation of the task leaves running
                await asyncio.shield(_together(taken)._agive_back(error))
            elif taken:
                _together(taken)._give_back(error)
            raise
        return _together(taken)

    # taking

    def acquire(
        self, wait: Seconds | Unset | None = UNSET, *, _of_block: bool = False, **others: Never
    ) -> Lease:
        """Wait until the lock is ours and return its lease.

        Args:
            wait: seconds to try, instead of the lock's own; 0 = once, None = without end.

        Raises:
            LockNotAcquired: others held it all the time. BackendUnavailable: no answer, or too late for
            the ttl. LockTransactionError: a transaction is open; see `on_open_transaction` of `get_lock`.
            SynchronousOnlyOperation: an event loop runs in this thread, and would stand still.
        """
        if others:
            refuse_unknown("acquire", others, ("wait",))
        if _get_running_loop() is None:
            context: object = threading.current_thread()  # `current_context` would look for a loop again
        elif os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
            context = current_context()
        else:
            raise SynchronousOnlyOperation(  # as Django does
                f"to acquire the lock {self.name!r} here would block the event loop: write `async with`,"
                " `await lock.aacquire()` or `await lock.atry_acquire()`, or call this `def` by sync_to_async"
            )
        seconds = self._wait if isinstance(wait, Unset) else check_wait(wait)
        try:
            self._take(seconds, context, is_task=False).send(None)
        except StopIteration as done:
            lease: Lease = done.value
        try:
            self._remember(lease, context, _of_block)
        except BaseException as error:  # a signal's handler: what was not entered is never left
            lease._give_back(error)
            raise
        return lease

    def try_acquire(self) -> Lease | None:
        """Return a lease at once, or None when someone else has the lock."""
        try:
            return self.acquire(wait=0)
        except LockNotAcquired:
            return None

    async def aacquire(self, wait: Seconds | Unset | None = UNSET, *, _of_block: bool = False) -> Lease:
        """`acquire` for asyncio: waits without a thread."""
        context = current_context()
        seconds = self._wait if isinstance(wait, Unset) else check_wait(wait)
        lease = await self._take(seconds, context, is_task=True)
        self._remember(lease, context, _of_block)
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
            BackendUnavailable: on entering, when there was no answer.

        Example:
            >>> with get_lock("nightly").attempt() as lease:
            ...     if lease:
            ...         send_report()
        """
        return Attempt(self, wait)

    # what the running thread or task has acquired

    def _lease(self) -> Lease:
        """Return the last lease that wasn't given back."""
        _, entries = self._entered.get(id(current_context()), (None, []))
        for lease, _of_block in reversed(entries):
            if lease is not None and lease.registered:
                return lease
        raise self._not_held()

    def _remember(self, lease: Lease | None, context: object, of_block: bool) -> None:
        me = id(context)
        mine = self._entered.get(me)
        if mine is None:
            there = ref(context, partial(_forget_context, ref(self), me))
            self._entered[me] = there, [(lease, of_block)]
            return
        # What was given back goes here, for one thread may use the same lock for years. A block's own stays:
        # its end tells that it was given back before.
        _, entries = mine
        entries[:] = [(each, block) for each, block in entries if block or (each and each.registered)]
        entries.append((lease, of_block))

    def _pop_block_lease(self, error: BaseException | None) -> Lease | None:
        """Take off the list what the end of a block gives back: the block's own lease or, where that was
        given back before and the lock was acquired again, the last one.

        None where the block has none, or where another thread ends it by an error. A thread that only closes
        a generator must hear that the lock stays.
        """
        mine = self._entered.get(me := id(current_context()))
        if mine is None:
            if error is None or isinstance(error, GeneratorExit):
                raise self._not_held()
            return None
        _, entries = mine
        if len(entries) == 1:  # nearly always
            del self._entered[me]
            return entries[0][0]
        blocks = [index for index, (_, of_block) in enumerate(entries) if of_block]
        begin = blocks[-1] if blocks else len(entries) - 1
        own, _ = entries.pop(begin)
        since = [entry for entry in entries[begin:] if entry[0] and entry[0].registered]
        if own is None or own.registered or not since:
            return own
        entries.remove(since[-1])
        return since[-1][0]

    def _not_held(self) -> LockNotOwned:
        return LockNotOwned(f"the lock {self.name!r} isn't held by this thread or task")

    def release(self) -> None:
        """Release what this thread or task acquired last. LockNotOwned, LockLost: see `Lease.release`."""
        self._lease().release()

    async def arelease(self) -> None:
        """`release` for asyncio."""
        await self._lease().arelease()

    def extend(self, ttl: Seconds) -> None:
        """Give the lease `ttl` seconds from now; see `Lease.extend`."""
        self._lease().extend(ttl)

    async def aextend(self, ttl: Seconds) -> None:
        """`extend` for asyncio."""
        await self._lease().aextend(ttl)

    def remaining(self) -> float:
        """Return the seconds left of what this thread or task holds by this name; 0.0 without a lease.

        Whatever acquired it counts, as for re-entry: another object, or the decorator. Of a semaphore, where
        each acquisition takes another permit, it is what this object has acquired. Of several names it is
        that of the lease that ends first.
        """
        return min(part.remaining() for part in self._parts)

    def owned(self) -> bool:
        """Return whether this thread or task holds the lock; see `remaining`."""
        return self.remaining() > 0.0

    # `with` and `async with`

    def __enter__(self) -> Lease:
        return self.acquire(_of_block=True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (lease := self._pop_block_lease(error)) is not None:
            lease._give_back(error)

    async def __aenter__(self) -> Lease:
        return await self.aacquire(_of_block=True)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (lease := self._pop_block_lease(error)) is not None:
            await lease._agive_back(error)


def _together(taken: list[Lease]) -> Lease:
    return Lease([single for lease in taken for single in lease.leases])


def _forget_context(lock: ref[Lock], context: int, _: ref[object]) -> None:
    """Drop the leases of a thread or task that has ended without releasing them: they aren't renewed."""
    if (left := lock()) is not None:
        left._entered.pop(context, None)


class Attempt:
    """What `Lock.attempt` returns: `with` and `async with` give a lease, or None."""

    def __init__(self, lock: Lock, wait: Seconds | Unset | None) -> None:
        self._lock, self._wait = lock, wait

    def __enter__(self) -> Lease | None:
        try:
            return self._lock.acquire(self._wait, _of_block=True)
        except LockNotAcquired:
            self._lock._remember(None, current_context(), of_block=True)
            return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._lock.__exit__(kind, error, trace)

    async def __aenter__(self) -> Lease | None:
        try:
            return await self._lock.aacquire(self._wait, _of_block=True)
        except LockNotAcquired:
            self._lock._remember(None, current_context(), of_block=True)
            return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._lock.__aexit__(kind, error, trace)


class SingleLock(Lock):
    """The lock of one name."""

    def __init__(self, name: str, options: CheckedOptions) -> None:
        self._entered = {}
        self.terms = terms = options.terms(name)
        self.name, self.key, self.backend, self.ttl = name, terms.key, terms.backend, terms.ttl
        self._wait, self.on_open_transaction = terms.wait, terms.on_open_transaction
        self._new_owner: Callable[[], str] = new_owner
        if terms.guarded:
            self._new_owner = partial(_new_guarded_owner, terms.backend)
        self.transaction_on = terms.backend.transaction_on

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} on {self.backend.alias!r}>"

    def act_for(self, client_id: str, *, take_over: bool = False) -> None:
        self._new_owner = partial(new_owner, client_id)
        self.terms = self.terms._replace(shared_name=True)
        if not take_over or not isinstance(self.backend, ForceRelease):
            return
        if held_by(current_context(), self.backend.alias, self.key) is not None:
            return  # the caller may re-enter
        for owner in self._owners():
            if is_owner_of(client_id, owner) and self.backend.force_release(self.key, owner):
                where = {"name": self.name, "key": self.key, "backend": self.backend.settings.alias}
                signals.notify(signals.lock_force_released, outcome="force_released", owner=owner, **where)

    def act_as(self, owner: str) -> None:
        """Acquire as exactly this owner: it is granted at once what it holds already."""
        # An attempt that fails gives back only a grant that it made itself, as far as that is known: what it
        # may have held before stays. What an unanswered request may have taken ends with its ttl.
        self._new_owner = lambda: owner
        self.terms = self.terms._replace(shared_name=True, owner_is_given=True)

    def _owners(self) -> list[str]:
        holder = self.backend.holder(self.key)
        return [] if holder is None else [holder.owner]

    def locked(self) -> bool:
        return self._is_taken(self.backend.holder(self.key))

    async def alocked(self) -> bool:
        return self._is_taken(await self.backend.aholder(self.key))

    def _is_taken(self, holder: Holder | None) -> bool:
        return holder is not None

    def remaining(self) -> float:
        hold = self._hold_of(current_context())
        return 0.0 if hold is None or hold.is_another_calls() else hold.remaining()

    def _hold_of(self, context: object) -> SingleLease | None:
        """Return the lease that this thread or task would enter again."""
        return held_by(context, self.backend.alias, self.key)

    async def _take(self, wait: float | None, context: object, *, is_task: bool) -> Lease:
        """Re-enter, or enqueue and wait for our turn; after a grant that came too late, begin again."""
        if HOLDS and (hold := self._reenter(context)):  # a process holds nothing most of the time
            return hold
        if self.on_open_transaction != "ignore":
            if is_task:
                await in_calling_thread(partial(refuse_open_transactions, (self.name,)))
            else:
                refuse_open_transactions((self.name,))
        begun = now()
        while True:
            waiter = self._new_waiter(self.backend.async_waiter if is_task else self.backend.waiter)
            outcome: Outcome | None = None
            try:
                asked = waiter.try_acquire(queue=wait != 0)
                outcome = asked if isinstance(asked, tuple) else await asked
                if isinstance(outcome, Busy):
                    outcome = await self._wait_in(waiter, outcome, begun, wait, context, is_task)
                return self._leased(waiter.owner, outcome, context, begun)
            except BaseException as error:
                self._clean_up_after(error, waiter.owner, begun, outcome)
                if self._may_undo(outcome):
                    await self._leave(waiter)
                if not self._begins_again(error, begun, wait):
                    raise

    def _begins_again(self, error: BaseException, begun: float, wait: float | None) -> bool:
        """Whether an attempt that ended in `error` is followed by another, in what is left of the wait."""
        if isinstance(error, BackendUnavailable):
            breaker.ended(self.backend, self.key)
        return isinstance(error, LateGrant) and (wait is None or now() < begun + wait)

    def _new_waiter(self, make: Callable[..., AnyWaiter]) -> AnyWaiter:
        """Return the waiter of one attempt, of an owner of its own; BackendUnavailable: a silent server."""
        if breaker.silent:
            try:
                breaker.admit(self.backend, self.key)
            except BackendUnavailable as error:
                self._note_refusal(error, "", 0.0)
                raise
        waiter = make(self.key, owner := self._new_owner(), self.ttl, fenced=self.terms.fenced)
        waiter.owner, waiter.owner_is_given = waiter.owner or owner, self.terms.owner_is_given
        return waiter

    async def _wait_in(
        self, waiter: AnyWaiter, busy: Busy, begun: float, wait: float | None, context: object, is_task: bool
    ) -> Grant:
        """Wait for what the server has answered with `busy`, unless there are too many waiters."""
        outcome: Outcome = busy
        waiting = waits.Waiting(self.terms, context, begun)
        try:
            if busy.outage is None and breaker.silent:
                breaker.answered(self.backend, self.key)
            if (watch := waiting.begin()) is None:
                reason = f"{self.backend.settings.max_waiters} waiters in this process already (MAX_WAITERS)"
                raise self.not_acquired(busy, begun, TooManyWaiters, reason)
            while isinstance(outcome, Busy):
                pause = self._pause(outcome, begun, wait)
                if (left := watch.due()) <= 0.0:
                    if is_task:
                        await asyncio.to_thread(watch.look, outcome)
                    else:
                        watch.look(outcome)
                    left = watch.due()
                asked = waiter.wait(max(0.0, min(pause, left)))
                outcome = asked if isinstance(asked, tuple) else await asked
        finally:
            withdraw = waiting.end()
            if withdraw and is_task:
                await asyncio.shield(asyncio.to_thread(withdraw))
            elif withdraw:
                withdraw()
        return outcome

    async def _leave(self, waiter: AnyWaiter) -> None:
        """Leave the queue; who is interrupted there, or gets no answer, may have been handed the lock."""
        unsettled = True
        try:
            left: Awaitable[None] | None = waiter.leave()
            if left is not None:
                await asyncio.shield(left)
            unsettled = waiter.unsettled
        finally:
            if unsettled:
                release_retrier.schedule(self.backend, self.key, waiter.owner, self.ttl)

    def _reenter(self, context: object) -> Lease | None:
        """Count one more hold of what this thread or task has, unless it is lost or may be another task's."""
        if (hold := self._hold_of(context)) is None:
            return None
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
        ask = waited >= waits.WORTH_A_QUESTION and _get_running_loop() is None
        who = busy.holder and waits.description(self.backend, busy.holder, ask=ask)
        usual = usual_hold(alias, self.terms.template)
        return error(self.name, waited=waited, backend=alias, holder=busy.holder, held_by=who,
                     retry_after=busy.retry_after, reason=reason, estimate=usual)  # fmt: skip

    def _may_undo(self, first: Outcome | None) -> bool:
        """Whether a hold of our owner can only come from this attempt, so that it may be released."""
        if not self.terms.owner_is_given:
            return True
        # Busy says that a given owner held nothing when the attempt began, and a grant whether it did.
        return first.is_new if isinstance(first, Grant) else first is not None and first.outage is None

    def _clean_up_after(self, error: BaseException, owner: str, begun: float, first: Outcome | None) -> None:
        """Schedule a release unless the attempt was refused or never sent: who queues may get the lock."""
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
        signal, outcome, reason = signals.lock_refused, "unavailable", None
        if isinstance(error, LockDeadlock):
            signal, outcome, reason = signals.lock_deadlocked, "deadlock", error.reason
            signals.tell("counted", self.backend.settings.alias, "deadlock")
        elif isinstance(error, LockNotAcquired):
            outcome = "contended"
        signals.tell("counted", self.backend.settings.alias, "refused")
        signals.notify(signal, outcome=outcome, name=self.name, key=self.key, backend=self.backend.alias,
               owner=owner, waited=waited, holder=getattr(error, "holder", None),
               template=self.terms.template, reason=reason)  # fmt: skip

    def _leased(self, owner: str, grant: Grant, context: object, begun: float) -> SingleLease:
        """Return the lease of a grant. LateGrant: the process was paused, or the answer came late."""
        if (moment := now()) >= grant.since + self.ttl:
            raise LateGrant(
                f"the backend {self.backend.alias!r} granted the lock {self.name!r} too late:"
                f" {moment - grant.since:.3f} s after the request, when the ttl of {self.ttl:g} s was over"
            )
        waited = moment - begun
        lease = SingleLease(self.terms, owner, grant, context)
        alias = self.backend.settings.alias
        if breaker.silent:
            breaker.answered(self.backend, self.key)
        for counted in signals.COUNTED:
            counted(alias, "acquired")
        if logs.TROUBLES:
            logs.available(logger, alias)
        if lease.renewed:
            lease.rescheduled = watchdogs.watch
            watchdogs.watch(lease)
        level = logging.INFO if waited >= signals.LONG_WAIT else logging.DEBUG
        if signals.is_heard(signals.lock_acquired, level):
            signals.publish(signals.lock_acquired, level, waited=waited, **lease.facts("acquired"))
        return lease


def _new_guarded_owner(backend: BaseLockBackend) -> str:
    """Return an owner that shows that its lock is released once its process is dead."""
    signals.tell("used", backend)
    return new_guarded_owner()


class LateGrant(BackendUnavailable):
    """The lock was granted, and its lease had ended by the time the grant arrived: it proves nothing."""


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
    lease: Lease | None
    if name is not None:
        lease = _held(check_name(name), backend)
    else:
        context = current_context()
        mine = [each for each in live_leases() if each.context() is context and not each.unreleased]
        latest = max(mine, key=lambda each: each.taken_at, default=None)
        lease = (latest and latest.joint and latest.joint()) or latest
    if lease is None:
        which = "no lock" if name is None else f"not the lock {name!r}"
        raise LockNotOwned(
            f"this thread or task holds {which}; call it in the body of a locked function or block"
        )
    return lease
