"""`@distributed_lock` for views, Celery tasks, plain and async functions.

Around a synchronous function the order is: lock, BEGIN, the function, COMMIT, release. Without the lock the
function never runs; `on_conflict` says what happens instead.
"""

from __future__ import annotations

import inspect
from collections import abc
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial, update_wrapper
from typing import Any, Final, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload
from weakref import WeakSet

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.http import HttpRequest, HttpResponseBase

from locking import exceptions
from locking.core.handler import locks
from locking.core.kinds import Kind, check_kind, lock_of
from locking.core.lease import Lease
from locking.core.lock import Lock
from locking.core.open_transactions import connections_in_transaction, refuse_open_transactions
from locking.core.options import OF_LOCKS, CheckedOptions, refuse_unknown
from locking.keys.names import UNSET, ConflictPolicy, NeverSkips, Seconds, Unset, check_policy, check_wait
from locking.keys.template import Args, KeySource, Kwargs, dotted_path, is_request, key_builder, label_of
from locking.transactions.locked_transaction import (
    DatabaseAliases,
    LockedTransaction,
    database_aliases,
    enclosing_locked_transaction,
    holding,
    retried,
    silent_rollback,
    transaction_under,
)
from locking.transactions.responses import conflict_response
from locking.transactions.tasks import AN_HOUR, running_task
from locking.utils.call_site import call_site_of

P = ParamSpec("P")
R = TypeVar("R")

MOST_RETRIES: Final = 100
CHANGES: Final = 1  # of a callable key, while its call waited for the locks that it had named before

UNFINISHED: Final = (abc.Generator, abc.AsyncGenerator, abc.Awaitable)
"""What a function may return and still has its work to do."""

DECORATED: Final[WeakSet[Callable[..., Any]]] = WeakSet()
"""What was decorated at import, for the system checks; each has its options as `lock_options`."""


class LockDecorator(Protocol):
    """A decorator that leaves the type of the function as it is."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


class SkippingDecorator(Protocol):
    """With `on_conflict="skip"` a call may come to nothing: its result may be None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


class DecoratorOptions(TypedDict, total=False):
    """The options of `distributed_lock` but `on_conflict`, which decides what it returns; explained there."""

    key: KeySource | None
    wait: Seconds | Unset | None
    ttl: Seconds | Unset | None
    renew: bool
    retry_for: Seconds | None
    release: bool
    atomic: bool | None
    using: DatabaseAliases
    fenced: bool
    retries: int
    kind: Kind
    permits: int | None
    backend: str


OPTIONS: Final = frozenset({*DecoratorOptions.__annotations__, "on_conflict"})


@overload
def distributed_lock(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def distributed_lock(
    *, on_conflict: Literal["skip"], **options: Unpack[DecoratorOptions]
) -> SkippingDecorator: ...
@overload
def distributed_lock(
    *, on_conflict: NeverSkips | Unset = UNSET, **options: Unpack[DecoratorOptions]
) -> LockDecorator: ...
def distributed_lock(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Run a function only while holding a lock, and release it only after the commit.

    Args:
        key: a template such as `"order:{order_id}"` (see `locking.keys.template`), or a list of them: all or
            none, in one order. Or a callable that gets the call's arguments and returns a name or several. It
            is called again once the locks are held; where it returns a name that is not among them, they are
            released and the new ones acquired. Omitted: the function's dotted path and its arguments.
        wait: seconds to wait for the lock; 0 = don't, None = without end. Default: the alias's `WAIT`.
        ttl: seconds of the lease; None = `WATCHDOG_TTL` (10), kept alive. Default: the alias's `TTL`.
        renew: keep the lease alive beyond a ttl that is given, as without one.
        on_conflict: what to do without the lock. `auto`: a view answers 409 (503 when the backend
            is down), a Celery task is retried, a function raises. `raise`: raise. `skip`: return None while
            another has the lock; an outage is still an error, and a view still answers. `retry`: as `auto`.
            Or a callable that gets the error and the call's arguments, and whose result is returned.
            Default: the alias's `ON_CONFLICT`. Where the lock was lost before the commit, or the fence
            refused the holder, everything was rolled back: a view answers 409 unless this is `raise` or a
            callable; everything else raises.
        retry_for: seconds for which a retried Celery task waits in its queue, in all, before it fails; None =
            without end. Its own `max_retries` don't count.
        release: False leaves the lock to its ttl, which must be given: protection against a double submit.
        atomic: run the function in a transaction that commits before the release. Default: True for a
            synchronous function; an async one can't have it, and commits what it does by itself.
        using: database alias, or several, of that transaction; a view is taken out of their ATOMIC_REQUESTS.
        fenced: have each database check the fencing token before the function reads anything, so that a
            holder that was overtaken can't write; see the page *Fencing*. With `atomic=False` it is the
            function's own `locked_transaction(…, fenced=True)` of the same names that checks it.
        retries: how often the whole function is run again, in a new transaction under the same lock, when the
            database gave its transaction up for another's sake (a serialization failure, a deadlock). Once
            one of the databases in `using` has committed, the error is raised instead.
        kind: `lock`, `read` or `write` (the sides of a read-write lock), `semaphore` or `fair`.
        permits: how many may hold a semaphore at a time.
        backend: alias in `LOCKING`.

    Raises:
        LockKeyError: at decoration, for a key that isn't one; at a call, for arguments that can't be one, and
            for a callable that returns no name.
        LockTransactionError: at a call, when a transaction is open already or can't be committed.
        TypeError, ValueError: at decoration, for what can't be decorated and for invalid options.

    Example:
        >>> @distributed_lock(key="order:{order_id}", wait=2)
        ... def pay(order_id): ...
    """
    if isinstance(function, str):
        raise TypeError(f"write @distributed_lock(key={function!r}): its options are keyword-only")
    if not options.keys() <= OPTIONS:
        _refuse_unknown(options)
    checked = Options(**options)
    return partial(_decorate, checked) if function is None else _decorate(checked, function)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in OF_LOCKS - OPTIONS:
            raise TypeError(
                f"distributed_lock() has no argument {name!r}, which is the lock's: inside the function write"
                f" `with locked_transaction(…, {name}=…):`, or get_lock where it commits by itself"
            )
    refuse_unknown("distributed_lock", options, OPTIONS)


@dataclass(kw_only=True, eq=False)
class Options(CheckedOptions):
    """The options of one decorator, checked."""

    key: KeySource | None = None
    on_conflict: ConflictPolicy | Unset = UNSET
    retry_for: float | None = AN_HOUR
    release: bool = True
    atomic: bool | None = None
    using: DatabaseAliases = "default"
    retries: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(self)
        if not isinstance(self.on_conflict, Unset):
            check_policy(self.on_conflict)
        if type(self.retries) is not int or not 0 <= self.retries <= MOST_RETRIES:
            raise ValueError(f"retries={self.retries!r} must be a whole number from 0 to {MOST_RETRIES}")
        if self.retries and self.atomic is False:
            raise ValueError("retries cannot be combined with atomic=False, which runs no transaction")
        self.retry_for = check_wait(self.retry_for, source="retry_for")
        if self.retry_for != AN_HOUR and self.on_conflict not in (UNSET, "auto", "retry"):
            raise ValueError(
                f"retry_for cannot be combined with on_conflict={self.on_conflict!r}, which retries nothing;"
                " leave one of them out"
            )
        if not self.release and isinstance(self.ttl, Unset | None):
            raise ValueError(
                "release=False keeps the lock locked until its ttl ends: give a ttl, for example ttl=3"
            )

    def of_lock(self, function: Callable[..., Any]) -> CheckedOptions:
        """Return the options of the lock around a function."""
        options = copy(self)
        options.template, options.site = label_of(function, self.key), call_site_of(function)
        if not iscoroutinefunction(function):  # `transaction_under` looks at what is open
            options.on_open_transaction = "ignore"
        options.guarded = self.fenced and self.atomic is not False and self.release
        return options

    def policy(self) -> ConflictPolicy:
        """Return the policy for a conflict: the decorator's, or else the alias's."""
        own = self.on_conflict
        return locks[self.backend].settings.on_conflict if isinstance(own, Unset) else own


# decorating


def _decorate(options: Options, function: Callable[..., Any]) -> Callable[..., Any]:
    _refuse_undecoratable(function)
    call = LockedCall(function, options)
    wrapper: Any = call.asynchronous() if iscoroutinefunction(function) else call.synchronous()
    update_wrapper(wrapper, function)
    # ATOMIC_REQUESTS would commit after the release. The set is new: the wrapped function keeps its own.
    aliases = {options.using} if isinstance(options.using, str) else options.using
    wrapper._non_atomic_requests = {*getattr(wrapper, "_non_atomic_requests", ()), *aliases}
    wrapper.lock_options = options
    if not isinstance(function, partial):  # method_decorator decorates again at every request
        DECORATED.add(wrapper)
    return cast(Callable[..., Any], wrapper)


def _refuse_undecoratable(function: Any) -> None:
    """Refuse what would run its body after the lock was released, or isn't a function."""
    what = repr(function)
    if inspect.isclass(function):
        raise TypeError(f"{what} is a class: use @method_decorator(distributed_lock(…), name='dispatch')")
    if isinstance(function, staticmethod | classmethod):
        raise TypeError(f"put @distributed_lock below @{type(function).__name__}, next to the function")
    if not callable(function):
        raise TypeError(f"@distributed_lock decorates functions, not {what}; its options are keyword-only")
    if hasattr(function, "apply_async"):
        raise TypeError(f"{what} is a Celery task already: put @distributed_lock below @shared_task")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{dotted_path(function)} is a generator function: its body would run after the release;"
            " lock where it is consumed, or return a list"
        )


class LockedCall:
    """A function and the lock around each of its calls."""

    # A synchronous call goes through `_run` (what comes of it), `_repeat` (as many transactions as it takes)
    # and `_attempt` (one of them, by `transaction_under`: lock, BEGIN, body, COMMIT, release).
    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function, self.options = function, options
        self.build_names = key_builder(function, options.key)
        self.lock_options = options.of_lock(function)
        self._asks_again = callable(options.key) and options.release  # else the first ones would stay locked
        self._atomic = options.atomic is not False

    @cached_property
    def _aliases(self) -> tuple[str, ...]:
        return database_aliases(self.options.using)

    # synchronous

    def synchronous(self) -> Any:
        """Return the wrapper of a plain function."""

        def locked(*args: Any, **kwargs: Any) -> Any:
            names = self.build_names(args, kwargs)
            for _ in range(CHANGES + 1):
                try:
                    return self._run(names, args, kwargs)
                except _KeysChanged as change:
                    names = change.args
                except _Refusal as refusal:
                    return refusal.args[0]
            return self._on_conflict(self._keeps_changing(names), args, kwargs)

        return locked

    def _run(self, names: Sequence[str], args: Args, kwargs: Kwargs) -> Any:
        """Call the function under its locks; answer where they were lost right before COMMIT."""
        options = self.options
        scope = options.backend if options.kind == "lock" else f"{options.backend}/{options.kind}"
        section = LockedTransaction(frozenset(names), self._aliases, scope, options.fenced)
        try:
            if options.retries:
                return self._repeat(section, args, kwargs)
            return self._attempt(section, args, kwargs)
        except (exceptions.LockLost, exceptions.StaleFencingToken, exceptions.BackendUnavailable) as error:
            # A transaction around this one has to be rolled back as well, so it gets the error in any case.
            if section.committed or not self._atomic or connections_in_transaction():
                raise
            unanswered = isinstance(error, exceptions.BackendUnavailable)
            if unanswered and not section.returned:
                raise  # the body's own
            policy = options.policy()
            raises = callable(policy) or policy == "raise" or request_of(args, kwargs) is None
            if raises and not unanswered:
                raise
            return self._on_conflict(error, args, kwargs)

    def _repeat(self, section: LockedTransaction, args: Args, kwargs: Kwargs) -> Any:
        """Hold the lock, and so the token, around as many transactions as it takes until one commits."""
        # A lock that ends with its transaction is acquired in each of them instead.
        retries, held = self.options.retries, None
        with ExitStack() as hold:
            if enclosing_locked_transaction(section):
                retries = 0  # only the outer transaction can be retried
            else:
                refuse_open_transactions(sorted(section.names))
                lock = self._lock(section)
                if lock.transaction_on is None:
                    try:
                        held = hold.enter_context(holding(lock, release=self.options.release))
                    except (exceptions.LockNotAcquired, exceptions.BackendUnavailable) as error:
                        return self._on_conflict(error, args, kwargs)
            return retried(partial(self._attempt, section, args, kwargs, held), retries, section.committed)

    def _attempt(
        self, section: LockedTransaction, args: Args, kwargs: Kwargs, held: Lease | None = None
    ) -> Any:
        entered = False
        try:
            with self._block(section, held):
                entered = True
                if self._asks_again:
                    _refuse_others(section.names, self.build_names(args, kwargs))
                result = self.function(*args, **kwargs)
                _refuse_unfinished(self.function, result)
                section.returned = True
                return self._stored_or_refused(result)
        except (exceptions.LockNotAcquired, exceptions.BackendUnavailable) as error:
            if entered:
                raise
            return self._on_conflict(error, args, kwargs)

    def _block(self, section: LockedTransaction, held: Lease | None) -> AbstractContextManager[Any]:
        """Return what takes the lock and, unless the function opens its own, begins the transactions."""
        policy, release = self.options.open_transaction_policy(), self.options.release
        if not self._atomic and policy != "ignore" and not enclosing_locked_transaction(section):
            refuse_open_transactions(sorted(section.names))
        lock = self._lock(section)
        if self._atomic:
            return transaction_under(lock, section, release=release, on_open_transaction=policy, held=held)
        return lock if release else holding(lock, release=False)

    def _lock(self, section: LockedTransaction) -> Lock:
        """Return the lock of one call; a task takes it in its own name, which a redelivery has too."""
        lock = lock_of(tuple(section.names), self.lock_options)
        if task := running_task(self.function):
            task.act_for(lock)
        return lock

    def _stored_or_refused(self, result: Any) -> Any:
        """Let a view's own refusal out of the transaction that it has had rolled back."""
        # What was written before an exception that Django REST framework answers must go too: it rolls back
        # under ATOMIC_REQUESTS only, and the view was taken out of that.
        if self._atomic and isinstance(result, HttpResponseBase) and result.status_code >= 400:
            answered = getattr(result, "exception", False)
            if answered or any(silent_rollback(connections[alias]) for alias in self._aliases):
                raise _Refusal(result)
        return result

    # asyncio

    def asynchronous(self) -> Any:
        """Return the wrapper of a coroutine function."""
        for name in ("atomic", "fenced", "retries"):
            if value := getattr(self.options, name):
                raise exceptions.LockTransactionError(
                    f"{name}={value!r} on the async function {dotted_path(self.function)}: Django has no"
                    " transactions in async code; put the database work into a synchronous function,"
                    " decorate that, and call it through sync_to_async"
                )

        async def locked(*args: Any, **kwargs: Any) -> Any:
            names = await _in_thread_if_needed(self.build_names, args, kwargs)
            for _ in range(CHANGES + 1):
                try:
                    return await self._aattempt(names, args, kwargs)
                except _KeysChanged as change:
                    names = change.args
            return await _awaited(self._on_conflict(self._keeps_changing(names), args, kwargs))

        return locked

    async def _aattempt(self, names: Sequence[str], args: Args, kwargs: Kwargs) -> Any:
        entered = False
        try:
            lock = lock_of(names, self.lock_options)
            async with lock if self.options.release else _left_to_expire(lock):
                entered = True
                if self._asks_again:
                    _refuse_others(names, await _in_thread_if_needed(self.build_names, args, kwargs))
                result = await self.function(*args, **kwargs)
                _refuse_unfinished(self.function, result)
                return result
        except (exceptions.LockNotAcquired, exceptions.BackendUnavailable) as error:
            if entered:
                raise
            return await _awaited(self._on_conflict(error, args, kwargs))

    # conflicts

    def _keeps_changing(self, names: Sequence[str]) -> exceptions.LockNotAcquired:
        reason = "its keys changed twice while it waited for them"
        which, where = ", ".join(names), self.options.backend
        return exceptions.LockNotAcquired(which, waited=0.0, backend=where, reason=reason)

    def _on_conflict(self, error: exceptions.LockError, args: Args, kwargs: Kwargs) -> Any:
        """Do what the policy says instead of running the function."""
        policy = self.options.policy()
        if callable(policy):
            return policy(error, *args, **kwargs)
        if policy == "raise":
            raise error
        if request := request_of(args, kwargs):
            return conflict_response(request, error, until_expiry=not self.options.release)
        if policy == "skip":
            if isinstance(error, exceptions.LockNotAcquired):
                return None
        elif task := running_task(self.function):
            task.retry(error, self.options.retry_for)
        raise error


class _KeysChanged(Exception):
    """Ends a section whose locks are not, or no more, the ones that the call needs: these names."""


def _refuse_others(held: Collection[str], needed: tuple[str, ...]) -> None:
    if not set(needed) <= set(held):
        raise _KeysChanged(*needed)


class _Refusal(Exception):
    """Carries a view's own refusal (400 and above) out of a transaction that it has had rolled back."""


@asynccontextmanager
async def _left_to_expire(lock: Lock) -> AsyncIterator[None]:
    lease = await lock.aacquire()
    try:
        yield
    finally:
        lease.leave_to_expire()


async def _in_thread_if_needed(ask: Callable[[Args, Kwargs], R], args: Args, kwargs: Kwargs) -> R:
    """Return what `ask` returns; where that turns out to need the database, it is called in a thread."""
    try:
        return ask(args, kwargs)
    except SynchronousOnlyOperation:
        return await sync_to_async(ask)(args, kwargs)


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _refuse_unfinished(function: Callable[..., Any], result: Any) -> None:
    """A generator, a coroutine or a streaming response does its work after the lock was released."""
    if not (result.streaming if isinstance(result, HttpResponseBase) else isinstance(result, UNFINISHED)):
        return
    if not inspect.isasyncgen(result) and hasattr(result, "close"):
        result.close()
    raise exceptions.LockTransactionError(
        f"{dotted_path(function)} returned a {type(result).__name__}, whose work is done after the lock was"
        " released; finish the work inside (return a list, an HttpResponse, an awaited result), or lock where"
        " it is consumed"
    )


def request_of(args: Args, kwargs: Kwargs) -> HttpRequest | None:
    """Return a view's request: its first argument, the one after `self`, or the keyword `request`."""
    for value in (*args[:2], kwargs.get("request")):
        if is_request(value):
            request: HttpRequest = getattr(value, "_request", value)
            return request
    return None
