"""Commit before release: lock, BEGIN, fence, body, COMMIT, and only then the release.

A lock released before the transaction under it commits protects nothing: the next holder reads what was
there before. So the lock stands outside the transaction, never inside; what can't be ordered so is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, _GeneratorContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, Final, Protocol, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction
from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic, atomic, on_commit

from locking.core.kinds import lock_of
from locking.core.lease import Lease
from locking.core.open_transactions import (
    committing_under,
    connections_in_transaction,
    let_go,
    refuse_open_transactions,
    section_of,
    settle_commit,
    shown,
)
from locking.core.options import LockOptions, options_of
from locking.exceptions import LockLost, LockNotSupported, LockTransactionError
from locking.keys.names import OnOpenTransaction, check_names
from locking.keys.template import dotted_path
from locking.transactions import fence
from locking.transactions.commit_probe import CommitMarker, resolve
from locking.utils.backoff import jittered
from locking.utils.databases import (
    inside_test_case,
    noting_rollbacks,
    reply_was_lost,
    stood_idle,
    was_overtaken,
)

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

DatabaseAliases = str | Sequence[str]

PSYCOPG_IN_ERROR: Final = 3  # TransactionStatus.INERROR, in psycopg 2 and 3 alike
FENCE_TRIES: Final = 10


class LockedBlock(_GeneratorContextManager[Lease]):
    """What `locked_transaction` returns: for `with`, and to decorate functions whose body a call runs."""

    def __call__(self, function: F) -> F:
        """Run each call of `function` in a block of its own."""
        if iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function):
            raise TypeError(
                f"@locked_transaction on {dotted_path(function)}, whose body would run after the release: a"
                " call of it only makes an object; decorate a synchronous function that does the work"
            )
        return super().__call__(function)


def locked_transaction(
    *names: str, using: DatabaseAliases = "default", **options: Unpack[LockOptions]
) -> LockedBlock:
    """Hold the locks of these names around a transaction: lock, BEGIN, fence, body, COMMIT, release.

    `on_commit` hooks run while the lock is still held. The same names may be locked again inside: that nests
    as a plain savepoint, since the lock stays until the outermost block has committed.

    Args:
        names: what to lock; several are taken all or none.
        using: the database alias, or several. Several commit one after the other, not as one.
        fenced: have each database check the fencing token before the body reads anything, so that a holder
            that was overtaken can't write; see the page *Fencing*.
        on_open_transaction: inside a transaction that is open already, `refuse`, or `ignore` it and release
            before it ends. Default: the alias's `ON_OPEN_TRANSACTION`.
        options: the others of `get_lock`: `ttl`, `wait`, `guarded`, `backend`, `min_hold`, `on_lost`,
            `template`.

    Returns:
        A context manager that gives the lease, and a decorator of synchronous functions.

    Raises:
        LockNotAcquired: others held a lock until the wait ran out; the body has not run.
        BackendUnavailable: the backend didn't answer; the body has not run.
        LockTransactionError: a transaction is open already, so the lock would be released before it commits;
            or the body's work was rolled back although the body itself raised nothing.
        LockLost: the lease ended before COMMIT; everything was rolled back.
        StaleFencingToken: with `fenced`, the database has seen a newer holder; the body has not run.
        LockNotSupported: with `fenced`, a backend that mints no tokens, or a database that can't check them.
        TypeError: it decorates an async or a generator function, whose body would run after the release.

    Example:
        >>> with locked_transaction("order:42") as lease:    # doctest: +SKIP
        ...     order.pay()
    """
    return LockedBlock(_locked_transaction, (names, using, options), {})


def _locked_transaction(
    names: Sequence[str], using: DatabaseAliases, options: LockOptions
) -> Generator[Lease, None, None]:
    given, checked = options_of("locked_transaction", options), check_names(tuple(names))
    aliases = database_aliases(using)
    policy = given.open_transaction_policy()
    given.on_open_transaction = "ignore"  # looked at below, also for a lock that is held already
    given.guarded |= given.fenced  # the row of the fence orders a COMMIT that outlives its process
    lock = lock_of(checked, given)
    with transaction_under(
        lock, checked, aliases, given.backend, fenced=given.fenced, on_open_transaction=policy
    ) as lease:
        yield lease


class Acquirable(Protocol):
    """What a locked transaction needs of a lock."""

    name: str
    transaction_on: str | None

    def acquire(self) -> Lease:
        """See `Lock.acquire`."""


class HeldAgain:
    """The lock of a lease that is held: each acquisition enters that one again.

    Of a semaphore another acquisition of the lock itself would be another permit.
    """

    transaction_on: str | None = None

    def __init__(self, lease: Lease) -> None:
        self.name, self._lease = lease.name, lease

    def acquire(self) -> Lease:
        """Return the lease, entered once more; LockLost where it has ended."""
        self._lease.ensure_held()
        for single in self._lease.leases:
            single.depth += 1
        return self._lease


@dataclass(frozen=True, slots=True, eq=False)
class LockedTransaction:
    """A locked transaction that is running: what it holds and where it will commit."""

    names: frozenset[str]
    aliases: frozenset[str]
    scope: str
    lease: Lease
    fenced: bool = False
    committed: list[str] = field(default_factory=list)
    """The databases whose COMMIT has succeeded so far."""

    def covers(self, names: Sequence[str], aliases: Sequence[str], scope: str) -> bool:
        """Whether everything asked for is held until this section's own commits are through.

        A write lock covers the read lock of its name. Every acquisition of a semaphore is another permit, so
        none covers another.
        """
        held = (self.scope, self.scope.replace("/write", "/read"))
        same = scope in held and not scope.endswith("/semaphore")
        return same and self.names.issuperset(names) and self.aliases.issuperset(aliases)


class LockedAtomic(Atomic):
    """The outermost atomic block of a locked transaction; it remembers which, for whatever nests in it.

    It notes its COMMIT in the section: an error that follows is no rollback. One without an answer keeps
    the lock from being released; with a fence it also finds out what became of it.
    """

    section: LockedTransaction

    def __init__(self, alias: str, section: LockedTransaction | None = None) -> None:
        super().__init__(alias, savepoint=True, durable=True)
        if section is not None:
            self.section = section
        self.alias = alias
        self.marker: CommitMarker | None = None
        self.answered = False

    def __enter__(self) -> None:
        super().__enter__()
        if not inside_test_case(connections[self.alias]):  # nothing is committed there
            on_commit(self._note_commit, using=self.alias)  # the first hook to run, right behind COMMIT

    def _note_commit(self) -> None:
        self.answered = True
        self.section.committed.append(self.alias)

    def raise_fence(self) -> None:
        """Advance the fence: the first statement of this transaction."""
        marker = fence.advance(self.alias, self.section.lease)
        if not inside_test_case(connections[self.alias]):
            self.marker = marker

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        connection = connections[self.alias]
        hooks = list(connection.run_on_commit)
        try:
            with committing_under(self.section.lease, connection, self) if kind is None else nullcontext():
                super().__exit__(kind, error, trace)
        except Error as trouble:
            self._raise_if_idle(trouble)
            if kind is not None or not self._was_committed_after_all(trouble):
                raise
            self._run(hooks)
        if error is not None:
            self._raise_if_idle(error)

    def _run(self, hooks: list[Any]) -> None:
        """Run the hooks of a transaction that was committed: they went down with its connection."""
        connection = connections[self.alias]
        connection.run_on_commit = hooks
        connection.run_and_clear_commit_hooks()

    def _raise_if_idle(self, error: BaseException) -> None:
        if self.marker is not None and not self.answered and stood_idle(error):
            raise LockLost(
                f"the database {self.alias!r} ended the transaction, because its holder did nothing in it for"
                " longer than FENCE_TIMEOUT (by default the ttl): another may hold the lock now, and nothing"
                " was stored"
            ) from error

    def _was_committed_after_all(self, error: Error) -> bool:
        if self.marker is None or self.answered or not reply_was_lost(error):
            return False
        committed = resolve(self.marker, error)
        if committed is not None:
            settle_commit([self.section.lease], self)
        return bool(committed)


@contextmanager
def transaction_under(
    lock: Acquirable,
    names: Sequence[str],
    aliases: Sequence[str],
    scope: str,
    *,
    release: bool = True,
    on_open_transaction: OnOpenTransaction = "refuse",
    fenced: bool = False,
    committed: list[str] | None = None,
) -> Iterator[Lease]:
    """`locked_transaction` on a lock that was made already; without `release` it is left to its ttl.

    Each database whose COMMIT succeeds is added to `committed`. `scope` is the alias and kind of the lock.
    """
    committed = [] if committed is None else committed
    if lock.transaction_on is not None and not release:
        raise LockNotSupported(
            f"the lock {lock.name!r} ends with its transaction on the database {lock.transaction_on!r}, so it"
            " can't be left to its ttl (release=False); take another backend"
        )
    if outer := enclosing_locked_transaction(names, aliases, scope):
        if fenced and not outer.fenced:
            raise LockTransactionError(
                f"fenced=True for {shown(names)} inside a locked transaction without it: what that one has"
                " read already is not behind the fence; write fenced=True on the outermost one"
            )
        with transaction_without_lock(aliases):
            yield outer.lease
        return
    if on_open_transaction == "ignore" and connections_in_transaction():
        with holding(lock, release=release) as lease, _atomics(aliases):
            with _refusing_silent_rollbacks(aliases):
                yield lease
            lease.confirm()
        return
    refuse_open_transactions(names)
    if lock.transaction_on is not None:
        with _noting_commits(committed), _inside_transaction(lock, names, aliases, scope, committed) as lease:
            yield lease
        return
    if fenced:
        fence.require_fence(aliases)
    with holding(lock, release=release) as lease, _noting_commits(committed):
        section = LockedTransaction(frozenset(names), frozenset(aliases), scope, lease, fenced, committed)
        with _begin_fenced(aliases, section) if fenced else _begin(aliases, section):
            with _refusing_silent_rollbacks(aliases):
                yield lease
            lease.confirm()


@contextmanager
def _noting_commits(committed: Sequence[str]) -> Iterator[None]:
    """Have an error say which databases had committed before it was raised."""
    try:
        yield
    except BaseException as error:
        if committed:
            plural = "databases" if len(committed) > 1 else "database"
            error.add_note(f"raised after COMMIT on the {plural} {shown(committed)}: that work is stored")
        raise


@contextmanager
def _inside_transaction(
    lock: Acquirable, names: Sequence[str], aliases: Sequence[str], scope: str, committed: list[str]
) -> Iterator[Lease]:
    """Take a lock that ends with its transaction: BEGIN, lock, body, COMMIT, and that was the release.

    Its database is the outermost one, whose commit is the last. `on_commit` hooks run after the release.
    """
    home = lock.transaction_on
    if home is None or home not in aliases:
        raise LockTransactionError(
            f"the lock {lock.name!r} ends with a transaction on the database {home!r}, and this one is on"
            f" {shown(aliases)}: name it in using="
        )
    with ExitStack() as settled, ExitStack() as stack:
        blocks = [LockedAtomic(alias) for alias in (home, *(alias for alias in aliases if alias != home))]
        for block in blocks:
            stack.enter_context(block)
        lease = lock.acquire()
        settled.callback(let_go, lease, release=True)
        section = LockedTransaction(frozenset(names), frozenset(aliases), scope, lease, committed=committed)
        for block in blocks:
            block.section = section
        with _refusing_silent_rollbacks(aliases):
            yield lease
        lease.confirm()


def _begin(aliases: Sequence[str], section: LockedTransaction) -> ExitStack:
    """Enter the outermost atomic blocks, and raise their fences before anything is read; they end in reverse
    order.
    """
    with ExitStack() as stack:
        blocks = [LockedAtomic(alias, section) for alias in aliases]
        for block in blocks:
            stack.enter_context(block)
        for block in sorted(blocks, key=lambda block: block.alias) if section.fenced else ():
            block.raise_fence()
        if section.fenced:
            fence.passed(section.lease)
        return stack.pop_all()


def _begin_fenced(aliases: Sequence[str], section: LockedTransaction) -> ExitStack:
    """Restart while the fence was overtaken: stricter isolation levels answer so to a transaction that had to
    wait.

    Nothing was read yet, so nothing changes for the body.
    """
    for alias in aliases:
        fence.prepare(alias, section.lease)
    for attempt in range(FENCE_TRIES - 1):
        try:
            return _begin(aliases, section)
        except DatabaseError as error:
            if not was_overtaken(error):
                raise
        time.sleep(jittered(attempt))
    return _begin(aliases, section)


@contextmanager
def holding(lock: Acquirable, *, release: bool = True) -> Iterator[Lease]:
    """Hold a lock around what settles by itself: trouble in letting go masks neither its error nor result."""
    lease = lock.acquire()
    try:
        yield lease
    finally:
        let_go(lease, release=release)


@contextmanager
def _atomics(aliases: Sequence[str]) -> Iterator[None]:
    """Enter an atomic block of each database; they end in reverse order."""
    with ExitStack() as stack:
        for alias in aliases:
            stack.enter_context(atomic(alias))
        yield


@contextmanager
def transaction_without_lock(aliases: Sequence[str]) -> Iterator[None]:
    """A transaction for a call that needs no lock; it never takes a rollback for success either."""
    with _atomics(aliases), _refusing_silent_rollbacks(aliases):
        yield


def database_aliases(using: object) -> tuple[str, ...]:
    """Return the database aliases of a `using` option, checked: one alias, or several, in the order given."""
    aliases = (using,) if isinstance(using, str) else using
    if not isinstance(aliases, list | tuple | set | frozenset) or not aliases:
        raise ValueError(f"using={using!r} is no database alias; write using='default', or a list of aliases")
    for alias in aliases:
        if alias not in connections.settings:
            known = ", ".join(sorted(connections.settings))
            raise ValueError(f"using={using!r}: DATABASES has no alias {alias!r}; it has {known}")
    return tuple(dict.fromkeys(aliases))


# what is open already


def enclosing_locked_transaction(
    names: Sequence[str], aliases: Sequence[str], scope: str
) -> LockedTransaction | None:
    """The locked transaction around the caller that holds all of this until its commit, if there is one."""
    found = {section_of(connections[alias]) for alias in aliases}
    section: LockedTransaction | None = found.pop()
    if found or section is None or not section.covers(names, aliases, scope):
        return None
    return section


# what was lost without a word


@contextmanager
def _refusing_silent_rollbacks(aliases: Sequence[str]) -> Iterator[None]:
    """Run the body of a transaction; raise where it ends without an error although its work is lost: Django
    leaves such a block without an error and without the data, and that must not pass for success.
    """
    with ExitStack() as watched:
        for alias in aliases:
            watched.enter_context(noting_rollbacks(connections[alias]))
        yield
    for alias in aliases:
        if reason := silent_rollback(connections[alias]):
            raise LockTransactionError(
                f"the transaction on database {alias!r} can't commit: {reason}; nothing of it was stored"
            ) from getattr(connections[alias], "rollback_exc", None)


def silent_rollback(connection: BaseDatabaseWrapper) -> str | None:
    """Why the open transaction will be rolled back although nothing was raised; None where it can commit."""
    if connection.closed_in_transaction:
        return "its connection was closed inside the block (connection.close(), close_old_connections())"
    if connection.needs_rollback:
        return (
            "an error inside it was caught, or a rollback was asked for; catch database errors around a"
            " transaction.atomic() of their own"
        )
    if _aborted_by_server(connection):
        return (
            "a statement failed and its error was caught; catch it around a transaction.atomic() of its own"
        )
    return None


def _aborted_by_server(connection: BaseDatabaseWrapper) -> bool:
    """Whether PostgreSQL will answer COMMIT with ROLLBACK: the drivers raise nothing then."""
    if connection.vendor != "postgresql" or connection.connection is None:
        return False
    return bool(connection.connection.info.transaction_status == PSYCOPG_IN_ERROR)
