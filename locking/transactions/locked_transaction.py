"""Commit before release: lock, BEGIN, fence, body, COMMIT, and only then the release.

A lock released before the transaction under it commits protects nothing: the next holder reads what was
there before. So the lock is outside the transaction, never inside; what can't be ordered so is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, _GeneratorContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, Final, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction
from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic, atomic

from locking.core.kinds import lock_of
from locking.core.lease import Lease
from locking.core.lock import Lock
from locking.core.open_transactions import (
    connections_in_transaction,
    let_go,
    refuse_open_transactions,
    section_of,
    shown,
)
from locking.core.options import LockOptions, options_of
from locking.exceptions import LockLost, LockNotSupported, LockTransactionError
from locking.keys.names import OnOpenTransaction, check_names
from locking.keys.template import dotted_path
from locking.transactions import fence
from locking.utils import databases
from locking.utils.clock import jittered

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

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
    section = LockedTransaction(frozenset(checked), aliases, given.backend, given.fenced)
    with transaction_under(lock_of(checked, given), section, on_open_transaction=policy) as lease:
        yield lease


@dataclass(slots=True, eq=False)
class LockedTransaction:
    """A locked transaction: what it holds, and where it commits."""

    names: frozenset[str]
    aliases: tuple[str, ...]  # in the order in which the transactions begin; they commit in reverse
    scope: str  # the alias in `LOCKING`, and the kind where it isn't an ordinary lock
    fenced: bool = False
    committed: list[str] = field(default_factory=list)  # the databases whose COMMIT has succeeded so far
    returned: bool = False  # a decorated function has: what is raised from then on isn't its own
    connections: tuple[BaseDatabaseWrapper, ...] = field(init=False)
    lease: Lease = field(init=False)  # once the lock is held

    def __post_init__(self) -> None:
        self.connections = connections_to(self.aliases)

    def covers(self, other: LockedTransaction) -> bool:
        """Whether all that `other` asks for is held until this one's own commits are through."""
        # A write lock covers the read lock of its name. Every acquisition of a semaphore is another permit.
        held = (self.scope, self.scope.replace("/write", "/read"))
        same = other.scope in held and not other.scope.endswith("/semaphore")
        return same and self.names >= other.names and {*self.aliases} >= {*other.aliases}


class LockedAtomic(Atomic):
    """The outermost atomic block of a locked transaction; it remembers which, for whatever nests in it."""

    # It notes its COMMIT in the section: an error that follows is no rollback. One without an answer leaves
    # the lock to its ttl; with a fence it also finds out what became of it.
    def __init__(self, connection: BaseDatabaseWrapper, section: LockedTransaction) -> None:
        super().__init__(connection.alias, savepoint=True, durable=True)
        self.alias, self.section, self.connection = connection.alias, section, connection
        self.marker: fence.CommitMarker | None = None
        self.answered = False

    def raise_fence(self) -> None:
        """Advance the fence: the first statement of this transaction."""
        marker = fence.advance(self.alias, self.section.lease)
        if not databases.inside_test_case(self.connection):
            self.marker = marker

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        hooks = list(self.connection.run_on_commit)
        try:
            with self._noting_commits():
                super().__exit__(kind, error, trace)
        except Error as trouble:
            self._raise_if_idle(trouble)
            if kind is not None or not self._was_committed_after_all(trouble):
                raise
            self._note_commit()
            self.connection.run_on_commit = hooks  # they went down with the connection
            self.connection.run_and_clear_commit_hooks()
        if error is not None:
            self._raise_if_idle(error)

    @contextmanager
    def _noting_commits(self) -> Iterator[None]:
        own = vars(self.connection)
        before = own.get("_commit")  # of a connection that is in several of these blocks
        own["_commit"] = partial(self._commit, self.connection._commit)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            own.pop("_commit", None)
            if before is not None:
                own["_commit"] = before

    def _commit(self, commit: Callable[[], Any]) -> None:
        """Have Django commit, and note that in the leases until the server's answer."""
        # Where something else ends the wait for it, such as what a signal's handler raises, the server may
        # still be at work: see `SingleLease.unsettled`.
        for single in self.section.lease.leases:
            if single.backend.transaction_on is None:  # else the database ends the lock with the COMMIT
                single.unsettled.add(self)  # before it is sent, for a signal may come at any moment
        try:
            commit()
        except BaseException as error:
            if databases.may_still_commit(self.connection, error):
                with suppress(Error):  # else Django fails as it puts autocommit back, and that hides `error`
                    self.connection.close()
            else:
                self._settle()
            raise
        self._settle()
        self._note_commit()

    def _settle(self) -> None:
        """Note that the server is done with the COMMIT, whatever became of it."""
        for single in self.section.lease.leases:
            single.unsettled.discard(self)

    def _note_commit(self) -> None:
        if not self.answered:  # a hook may commit once more
            self.answered = True
            self.section.committed.append(self.alias)

    def _raise_if_idle(self, error: BaseException) -> None:
        if self.marker is not None and not self.answered and databases.code_of(error) == databases.STOOD_IDLE:
            raise LockLost(
                f"the database {self.alias!r} ended the transaction, because its holder did nothing in it for"
                " longer than FENCE_TIMEOUT (by default the ttl): another may hold the lock now, and nothing"
                " was stored"
            ) from error

    def _was_committed_after_all(self, error: Error) -> bool:
        if self.marker is None or self.answered or not databases.reply_was_lost(error):
            return False
        committed = fence.resolve(self.marker, error)
        if committed is not None:
            self._settle()
        return bool(committed)


@contextmanager
def transaction_under(
    lock: Lock,
    section: LockedTransaction,
    *,
    release: bool = True,
    on_open_transaction: OnOpenTransaction = "refuse",
    held: Lease | None = None,
) -> Iterator[Lease]:
    """Run a block in the order lock, BEGIN, fence, body, COMMIT, release."""
    # A lock that ends with its transaction comes after BEGIN instead, and COMMIT is its release; its database
    # is the outermost, whose commit is the last. `on_commit` hooks run after the release then. A lock that is
    # `held` already is released by the caller.
    if lock.transaction_on is not None and not release:
        raise LockNotSupported(
            f"the lock {lock.name!r} ends with its transaction on the database {lock.transaction_on!r}, so it"
            " can't be left to its ttl (release=False); take another backend"
        )
    if outer := enclosing_locked_transaction(section):
        with transaction_without_lock(section.aliases):
            yield outer.lease
        return
    if on_open_transaction == "ignore" and connections_in_transaction():
        with holding(lock, release=release) as taken, transaction_without_lock(section.aliases):
            yield taken
            taken.confirm()
        return
    refuse_open_transactions(sorted(section.names))
    inside = lock.transaction_on is not None
    if inside:
        section.connections = _beginning_with(lock, section)
    if section.fenced:
        fence.require_fence(section.aliases)
    lease: Lease | None = None
    try:
        if not inside:
            section.lease = lease = held or lock.acquire()
        with _begin(section):
            if inside:
                section.lease = lease = lock.acquire()
            yield section.lease
            refuse_silent_rollbacks(section.connections)
            section.lease.confirm()
    except BaseException as error:
        _say_what_was_committed(error, section.committed)
        raise
    finally:
        if lease is not None and held is None:
            let_go(lease, release=release)


def _say_what_was_committed(error: BaseException, aliases: Sequence[str]) -> None:
    if aliases:
        where = "databases" if len(aliases) > 1 else "database"
        error.add_note(f"raised after COMMIT on the {where} {shown(aliases)}: that work is stored")


def _beginning_with(lock: Lock, section: LockedTransaction) -> tuple[BaseDatabaseWrapper, ...]:
    """Return the connections, first the one to the database with whose transaction the lock ends."""
    home = lock.transaction_on
    if home not in section.aliases:
        raise LockTransactionError(
            f"the lock {lock.name!r} ends with a transaction on the database {home!r}, and this one is on"
            f" {shown(section.aliases)}: name it in using="
        )
    return tuple(sorted(section.connections, key=lambda connection: connection.alias != home))


def _begin(section: LockedTransaction) -> ExitStack:
    """Begin the transactions and raise their fences; COMMIT is the end of the block."""
    # A fence that was overtaken begins again: stricter isolation levels answer so to a transaction that had
    # to wait. Nothing was read yet, so nothing changes for the body.
    if not section.fenced:
        return _begin_once(section)
    for alias in section.aliases:
        fence.prepare(alias, section.lease)
    return retried(partial(_begin_once, section), FENCE_TRIES - 1, section.committed)


def _begin_once(section: LockedTransaction) -> ExitStack:
    with ExitStack() as stack:
        blocks = [LockedAtomic(connection, section) for connection in section.connections]
        for block in blocks:
            stack.enter_context(block)
        if section.fenced:
            for block in sorted(blocks, key=lambda block: block.alias):
                block.raise_fence()
        _note_rollbacks(stack, section.connections)
        return stack.pop_all()


def retried(step: Callable[[], T], tries: int, committed: Sequence[str]) -> T:
    """Repeat a step that the database gives up for another's sake, unless something is `committed`."""
    for attempt in range(tries):
        try:
            return step()
        except DatabaseError as error:
            if committed or not databases.was_overtaken(error):
                raise
        time.sleep(jittered(attempt))
    return step()


@contextmanager
def holding(lock: Lock, *, release: bool = True) -> Iterator[Lease]:
    """Hold a lock around what settles by itself: trouble in letting go masks neither its error nor result."""
    lease = lock.acquire()
    try:
        yield lease
    finally:
        let_go(lease, release=release)


@contextmanager
def transaction_without_lock(aliases: Sequence[str]) -> Iterator[None]:
    """Open a transaction for a call that needs no lock; it never takes a rollback for success either."""
    with ExitStack() as stack:
        for alias in aliases:
            stack.enter_context(atomic(alias))
        _note_rollbacks(stack, connections_to(aliases))
        yield
        refuse_silent_rollbacks(connections_to(aliases))


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


def enclosing_locked_transaction(section: LockedTransaction) -> LockedTransaction | None:
    """Return the locked transaction around the caller that holds all of this until its commit, if any."""
    found = {section_of(connection) for connection in section.connections}
    outer: LockedTransaction | None = found.pop()
    if found or outer is None or not outer.covers(section):
        return None
    if section.fenced and not outer.fenced:
        raise LockTransactionError(
            f"fenced=True for {shown(sorted(section.names))} inside a locked transaction without it: what"
            " that one has read already is not behind the fence; write fenced=True on the outermost one"
        )
    return outer


def connections_to(aliases: Sequence[str]) -> tuple[BaseDatabaseWrapper, ...]:
    """Return this thread's connections to these databases."""
    return tuple(connections[alias] for alias in aliases)


def _note_rollbacks(stack: ExitStack, on: Sequence[BaseDatabaseWrapper]) -> None:
    """Notice, until the stack ends, an error by which a database has rolled everything back."""
    for connection in on:
        if connection.vendor != "postgresql":  # it refuses whatever follows
            stack.enter_context(connection.execute_wrapper(databases.note_rollback))


def refuse_silent_rollbacks(on: Sequence[BaseDatabaseWrapper]) -> None:
    """Raise where a transaction will be rolled back although its body has raised nothing."""
    # Django ends such a block without an error and without the data, which must not pass for success.
    for connection in on:
        if reason := silent_rollback(connection):
            raise LockTransactionError(
                f"the transaction on database {connection.alias!r} can't commit: {reason}; nothing of it was"
                " stored"
            ) from getattr(connection, "rollback_exc", None)


def silent_rollback(connection: BaseDatabaseWrapper) -> str | None:
    """Why the open transaction will be rolled back although nothing was raised; None where it can commit."""
    if connection.closed_in_transaction:
        return "its connection was closed inside the block (connection.close(), close_old_connections())"
    if connection.needs_rollback:
        return (
            "an error inside it was caught, or a rollback was asked for; catch database errors around a"
            " transaction.atomic() of their own"
        )
    driver = connection.connection if connection.vendor == "postgresql" else None
    if driver is not None and driver.info.transaction_status == PSYCOPG_IN_ERROR:
        # PostgreSQL would answer COMMIT with ROLLBACK, and the drivers raise nothing then.
        return (
            "a statement failed and its error was caught; catch it around a transaction.atomic() of its own"
        )
    return None
