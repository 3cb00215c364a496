"""`@distributed_lock` for views, Celery tasks, plain and async functions.

Around a synchronous function the order is: lock, BEGIN, the function, COMMIT, release. Without the lock the
function never runs; `on_conflict` says what happens instead.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, fields
from functools import partial, update_wrapper
from importlib import import_module
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload
from weakref import WeakSet

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections
from django.http import HttpRequest, HttpResponseBase

from locking.core.handler import locks
from locking.core.kinds import lock_of
from locking.core.lock import Lock
from locking.core.open_transactions import connections_in_transaction, refuse_open_transactions
from locking.core.options import CheckedOptions, LockOptions
from locking.exceptions import (
    BackendUnavailable,
    LockError,
    LockLost,
    LockNotAcquired,
    LockTransactionError,
    StaleFencingToken,
)
from locking.keys.names import (
    UNSET,
    ConflictPolicy,
    Kind,
    NeverSkips,
    Seconds,
    Unset,
    check_policy,
    check_wait,
)
from locking.keys.template import (
    Args,
    KeySource,
    KeysSource,
    Kwargs,
    dotted_path,
    is_request,
    key_builder,
    label_of,
)
from locking.transactions.locked_transaction import (
    DatabaseAliases,
    HeldAgain,
    database_aliases,
    enclosing_locked_transaction,
    holding,
    silent_rollback,
    transaction_under,
)
from locking.transactions.request_state import RequestState
from locking.transactions.responses import conflict_response
from locking.utils.backoff import jittered
from locking.utils.call_site import call_site_of
from locking.utils.databases import was_overtaken
from locking.utils.hints import refuse_unknown

P = ParamSpec("P")
R = TypeVar("R")

Conflict = LockNotAcquired | BackendUnavailable
MOST_RETRIES: Final = 100
AN_HOUR: Final = 3600.0
MOST_CHANGES: Final = 10
"""Acquisitions of one call whose keys change each time while it waits for them."""

DECORATED: Final[WeakSet[Callable[..., Any]]] = WeakSet()
"""What was decorated at import, for the system checks; each has its options as `lock_options`."""


class LockDecorator(Protocol):
    """A decorator that leaves the type of the function as it is."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Decorate."""


class SkippingDecorator(Protocol):
    """With `on_conflict="skip"` a call may come to nothing: its result may be None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


class DecoratorOptions(LockOptions, total=False):
    """The options of `distributed_lock` but `on_conflict`, which decides what it returns; explained there."""

    key: KeySource | None
    keys: KeysSource | None
    kind: Kind
    permits: int | None
    retry_for: Seconds | None
    release: bool
    atomic: bool | None
    using: DatabaseAliases
    retries: int


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
        key: a template such as `"order:{order_id}"` (see `locking.keys.template`), or a callable that gets
            the call's arguments and returns a name or several. Omitted: the function's dotted path and its
            arguments.
        wait: seconds to wait for the lock; 0 = don't, None = without end. Default: the alias's `WAIT`.
        ttl: seconds of the lease; None = `WATCHDOG_TTL` (10), kept alive. Default: the alias's `TTL`.
        renew: keep the lease alive beyond a ttl that is given, as without one.
        on_conflict: what to do when the lock can't be had. `auto`: a view answers 409 (503 when the backend
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
        keys: several templates: all or none, in one order. Or a callable that gets the call's arguments and
            returns the names. It is called again once the locks are held; where it returns a name that is
            not among them, they are released and the new ones acquired, `MOST_CHANGES` times at most.
        kind: `lock`, `read` or `write` (the sides of a read-write lock), `semaphore` or `fair`.
        permits: how many may hold a semaphore at a time.
        backend: alias in `LOCKING`.
        min_hold: seconds for which the lock stays taken even if the function ends earlier.
        guarded: a condition of the database refuses what the function writes when it is out of date, so that
            the lock may be released at once when its process is killed; see `get_lock`.
        on_lost: called with the lease, in a thread of its own, when it is found lost while the function runs.
        template: what the names have in common, for metrics. Default: made of the key.
        on_open_transaction: called inside a transaction that is open already, `refuse`, or `ignore` it and
            release before it ends. Default: the alias's `ON_OPEN_TRANSACTION`.

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
    refuse_unknown("distributed_lock", options, [field.name for field in fields(Options)])
    checked = Options(**options)
    return partial(_decorate, checked) if function is None else _decorate(checked, function)


@dataclass(kw_only=True, eq=False)
class Options(CheckedOptions):
    """The options of one decorator, checked."""

    key: KeySource | None = None
    keys: KeysSource | None = None
    on_conflict: ConflictPolicy | Unset = UNSET
    retry_for: float | None = AN_HOUR
    release: bool = True
    atomic: bool | None = None
    using: DatabaseAliases = "default"
    retries: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.on_conflict, Unset):
            check_policy(self.on_conflict)
        _check_retries(self.retries, atomic=self.atomic)
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
        if not isinstance(self.on_open_transaction, Unset):
            self.open_transaction_policy()
        if callable(self.keys) and (self.min_hold or not self.release):
            raise ValueError(
                "keys=<callable> cannot be combined with min_hold or release=False: where the keys change,"
                " what was locked first has to be released at once"
            )

    def of_lock(self, function: Callable[..., Any]) -> CheckedOptions:
        """Return the options of the lock around a function."""
        given = {field.name: getattr(self, field.name) for field in fields(CheckedOptions)}
        given["template"] = self.template or label_of(function, self.key, self.keys)
        if not iscoroutinefunction(function):  # `transaction_under` looks at what is open
            given["on_open_transaction"] = "ignore"
        behind_fence = self.fenced and self.atomic is not False
        given["guarded"] = (self.guarded or behind_fence) and self.release
        options = CheckedOptions(**given)
        options.site = call_site_of(function)
        return options

    @property
    def scope(self) -> str:
        """Which locks a name is one of: locks of another alias or kind have nothing to do with it."""
        return self.backend if self.kind == "lock" else f"{self.backend}/{self.kind}"

    def policy(self) -> ConflictPolicy:
        """What to do on a conflict: the decorator's own word, or else the alias's."""
        if not isinstance(self.on_conflict, Unset):
            return self.on_conflict
        policy: ConflictPolicy = locks[self.backend].settings.on_conflict
        return policy


def _check_retries(retries: object, *, atomic: bool | None) -> None:
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= MOST_RETRIES:
        raise ValueError(f"retries={retries!r} must be a whole number from 0 to {MOST_RETRIES}")
    if retries and atomic is False:
        raise ValueError("retries cannot be combined with atomic=False, which runs no transaction")


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
    if not isinstance(function, partial):  # method_decorator decorates anew at every request
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

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function, self.options = function, options
        self.build_names = key_builder(function, options.key, options.keys)
        self.lock_options = options.of_lock(function)

    # synchronous

    def synchronous(self) -> Any:
        """Return the wrapper of a plain function."""

        def locked(*args: Any, **kwargs: Any) -> Any:
            try:
                names = self.build_names(args, kwargs)
                for _ in range(MOST_CHANGES):
                    try:
                        return self._with_lock(names, args, kwargs)
                    except _KeysChanged as change:
                        names = change.names
                return self._on_conflict(self._keeps_changing(names), args, kwargs)
            except _Refusal as refusal:
                return refusal.response

        return locked

    def _with_lock(self, names: Sequence[str], args: Args, kwargs: Kwargs) -> Any:
        progress = _Progress(request_of(args, kwargs))
        try:
            run = self._run_again if self.options.retries else self._run
            return run(names, args, kwargs, progress)
        except (LockLost, StaleFencingToken, BackendUnavailable) as error:
            # A transaction around this one has to be rolled back as well, so it gets the error in any case.
            if progress.committed or not self._atomic or connections_in_transaction():
                raise
            if isinstance(error, BackendUnavailable) and not progress.returned:
                raise  # the body's own
            progress.before.restore()
            return self._on_rollback(error, args, kwargs)

    def _on_rollback(self, error: LockError, args: Args, kwargs: Kwargs) -> Any:
        """Answer where the lock was lost, or nobody could tell, right before COMMIT: nothing was stored."""
        if isinstance(error, BackendUnavailable):
            return self._on_conflict(error, args, kwargs)
        policy, request = self.options.policy(), request_of(args, kwargs)
        if request is None or callable(policy) or policy == "raise":
            raise error
        return conflict_response(request, error)

    def _run(
        self,
        names: Sequence[str],
        args: Args,
        kwargs: Kwargs,
        progress: _Progress,
        held: HeldAgain | None = None,
    ) -> Any:
        with ExitStack() as section:
            try:
                section.enter_context(self._section(names, progress.committed, held))
            except (LockNotAcquired, BackendUnavailable) as error:
                return self._on_conflict(error, args, kwargs)
            if callable(self.options.keys):
                _refuse_others(names, self.build_names(args, kwargs))
            result = self.function(*args, **kwargs)
            _refuse_unfinished(self.function, result)
            progress.returned = True
            return self._stored_or_refused(result)

    def _run_again(self, names: Sequence[str], args: Args, kwargs: Kwargs, progress: _Progress) -> Any:
        """Hold the lock, and so the token, around as many transactions as it takes until one commits.

        A lock that ends with its transaction is acquired in each of them instead.
        """
        with ExitStack() as hold:
            # Inside another locked transaction nothing is retried: given up as a whole, it must begin anew.
            retries = self.options.retries if self._refuse_open_transactions(names) else 0
            lock, held = self._lock(names), None
            if lock.transaction_on is None:
                try:
                    held = HeldAgain(hold.enter_context(holding(lock, release=self.options.release)))
                except (LockNotAcquired, BackendUnavailable) as error:
                    return self._on_conflict(error, args, kwargs)
            for attempt in range(retries):
                try:
                    return self._run(names, args, kwargs, progress, held)
                except DatabaseError as error:
                    if progress.committed or not was_overtaken(error):
                        raise
                progress.before.restore()
                time.sleep(jittered(attempt))
            return self._run(names, args, kwargs, progress, held)

    def _refuse_open_transactions(self, names: Sequence[str]) -> bool:
        """Refuse open transactions but a locked one that has all these names; False inside such a one."""
        options = self.options
        if enclosing_locked_transaction(names, database_aliases(options.using), options.scope) is not None:
            return False
        refuse_open_transactions(names)
        return True

    @property
    def _atomic(self) -> bool:
        return self.options.atomic is not False

    def _section(
        self, names: Sequence[str], committed: list[str], held: HeldAgain | None
    ) -> AbstractContextManager[Any]:
        """Return what takes the lock and, unless the function opens its own, begins the transactions."""
        options, policy = self.options, self.options.open_transaction_policy()
        if self._atomic:
            return transaction_under(
                held or self._lock(names),
                names,
                database_aliases(options.using),
                options.scope,
                release=options.release,
                fenced=options.fenced,
                on_open_transaction=policy,
                committed=committed,
            )
        if policy != "ignore":
            self._refuse_open_transactions(names)
        lock = self._lock(names)
        return lock if options.release else holding(lock, release=False)

    def _lock(self, names: Sequence[str]) -> Lock:
        """The lock of one call; a Celery task takes it in its own name, which a redelivery has too."""
        lock = lock_of(names, self.lock_options)
        if task := running_task(self.function):
            _celery().act_for(task, lock)
        return lock

    def _stored_or_refused(self, result: Any) -> Any:
        """Let a view's own refusal out of the transaction that it has had rolled back.

        What was written before an exception that Django REST framework answers must go too: it rolls back
        under ATOMIC_REQUESTS only, and the view was taken out of that.
        """
        refusal = isinstance(result, HttpResponseBase) and result.status_code >= 400
        if self._atomic and refusal and (getattr(result, "exception", False) or self._is_rolled_back()):
            raise _Refusal(result)
        return result

    def _is_rolled_back(self) -> bool:
        return any(silent_rollback(connections[alias]) for alias in database_aliases(self.options.using))

    # asyncio

    def asynchronous(self) -> Any:
        """Return the wrapper of a coroutine function."""
        self._refuse_what_needs_a_transaction()

        async def locked(*args: Any, **kwargs: Any) -> Any:
            names = await _in_thread_if_needed(self.build_names, args, kwargs)
            for _ in range(MOST_CHANGES):
                try:
                    return await self._awith_lock(names, args, kwargs)
                except _KeysChanged as change:
                    names = change.names
            return await _awaited(self._on_conflict(self._keeps_changing(names), args, kwargs))

        return locked

    async def _awith_lock(self, names: Sequence[str], args: Args, kwargs: Kwargs) -> Any:
        async with AsyncExitStack() as section:
            try:
                lock = lock_of(names, self.lock_options)
                if self.options.release:
                    await section.enter_async_context(lock)
                else:
                    section.callback((await lock.aacquire()).leave_to_expire)
            except (LockNotAcquired, BackendUnavailable) as error:
                return await _awaited(self._on_conflict(error, args, kwargs))
            if callable(self.options.keys):
                _refuse_others(names, await _in_thread_if_needed(self.build_names, args, kwargs))
            result = await self.function(*args, **kwargs)
            _refuse_unfinished(self.function, result)
            return result

    def _refuse_what_needs_a_transaction(self) -> None:
        wanted = {name: getattr(self.options, name) for name in ("atomic", "fenced", "retries")}
        for name, value in wanted.items():
            if value:
                raise LockTransactionError(
                    f"{name}={value!r} on the async function {dotted_path(self.function)}: Django has no"
                    " transactions in async code; put the database work into a synchronous function,"
                    " decorate that, and call it through sync_to_async"
                )

    # conflicts

    def _keeps_changing(self, names: Sequence[str]) -> LockNotAcquired:
        return LockNotAcquired(
            ", ".join(names),
            waited=0.0,
            backend=self.options.backend,
            reason=f"the keys changed {MOST_CHANGES} times while it waited for them",
        )

    def _on_conflict(self, error: Conflict, args: Args, kwargs: Kwargs) -> Any:
        """Do what the policy says instead of running the function."""
        policy = self.options.policy()
        if callable(policy):
            return policy(error, *args, **kwargs)
        if policy == "raise":
            raise error
        if request := request_of(args, kwargs):
            return conflict_response(request, error, until_expiry=not self.options.release)
        if policy == "skip" and isinstance(error, LockNotAcquired):
            return None
        if policy != "skip":
            retry_running_task(self.function, error, self.options.retry_for)
        raise error


class _Progress:
    """How far one call has come, which databases have committed, and what its request was like before."""

    def __init__(self, request: HttpRequest | None) -> None:
        self.committed: list[str] = []
        self.returned = False  # the body has; what is raised from then on isn't its own
        self.before = RequestState(request)


class _KeysChanged(Exception):
    """Ends a section whose locks are not, or no more, the ones that the call needs."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names


def _refuse_others(held: Sequence[str], needed: tuple[str, ...]) -> None:
    if not set(needed) <= set(held):
        raise _KeysChanged(needed)


async def _in_thread_if_needed(ask: Callable[[Args, Kwargs], R], args: Args, kwargs: Kwargs) -> R:
    """Return what `ask` returns; where that turns out to need the database, it is called in a thread."""
    try:
        return ask(args, kwargs)
    except SynchronousOnlyOperation:
        return await sync_to_async(ask)(args, kwargs)


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


class _Refusal(Exception):
    """Carries a view's own refusal (400 and above) out of a transaction that it has had rolled back."""

    def __init__(self, response: Any) -> None:
        self.response = response


def _refuse_unfinished(function: Callable[..., Any], result: Any) -> None:
    """A generator, a coroutine or a streaming response does its work after the lock was released."""
    streams = isinstance(result, HttpResponseBase) and result.streaming
    if not (
        streams or inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result)
    ):
        return
    if not inspect.isasyncgen(result) and hasattr(result, "close"):
        result.close()
    raise LockTransactionError(
        f"{dotted_path(function)} returned a {type(result).__name__}, whose work is done after the lock was"
        " released; finish the work inside (return a list, an HttpResponse, an awaited result), or lock where"
        " it is consumed"
    )


# who is calling


def request_of(args: Args, kwargs: Kwargs) -> HttpRequest | None:
    """The request of a view's call: its first argument, the one after `self`, or the keyword `request`."""
    for value in (*args[:2], kwargs.get("request")):
        if is_request(value):
            request: HttpRequest = getattr(value, "_request", value)
            return request
    return None


def retry_running_task(function: Callable[..., Any], error: Conflict, retry_for: float | None) -> None:
    """Send the running Celery task back to its queue if `function` is its body; return if it is nobody's."""
    if task := running_task(function):
        _celery().retry(task, error, retry_for)


def running_task(function: Callable[..., Any]) -> Any | None:
    """Return the Celery task that is running, if `function` is its body and not merely called by it."""
    return _celery().running_task(function) if "celery" in sys.modules else None


def _celery() -> Any:
    # By name: `contrib` builds on this module, and the import comes only where Celery is in use.
    return import_module("locking.contrib.celery")
