"""A lock taken inside a transaction that is open already, and held until that transaction has ended.

Django reports a commit (`on_commit`), never a rollback. Both end in the connection's own methods: the
outermost `atomic` calls `commit` or `rollback` and then, always, `set_autocommit(True)`, in which the
`on_commit` hooks run; one under a TestCase ends its savepoint; a closed connection ends everything. So for
the length of the hold these methods of this one connection object are watched, and the lock is released
behind the last of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from asgiref.sync import AsyncToSync, sync_to_async
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.core.lease import Lease, SingleLease
from locking.core.pending_release import release_retrier, report_unreleased
from locking.exceptions import BackendError, LockError, LockTransactionError
from locking.keys.names import OnOpenTransaction
from locking.utils.databases import may_still_commit

logger = logging.getLogger(__name__)

WATCHED: Final = ("commit", "set_autocommit", "savepoint_commit", "savepoint_rollback", "close")
WATCH: Final = "_locking_watch"


def before_acquiring(policy: OnOpenTransaction, name: str) -> None:
    """Refuse to acquire a lock inside an open transaction, or under one that would see old data.

    Raises:
        LockTransactionError: the message says what to do instead.
    """
    if policy == "refuse":
        refuse_open_transactions([name])
    elif policy == "hold":
        for connection in connections_in_transaction():
            _refuse_blind(connection)


async def in_calling_thread(step: Callable[[], None]) -> None:
    """Run `step` in the synchronous code that has called this coroutine: its thread has the transactions.

    Where there is no such code, nothing is open: Django's transactions don't last over an await.
    """
    if getattr(AsyncToSync.executors, "current", None) is None:
        return
    try:
        await sync_to_async(step)()
    except RuntimeError:
        logger.debug("the synchronous caller has ended, and its transactions with it")


def hold_until_ended(lease: Lease) -> None:
    """Keep a new lease until each open transaction of this thread has ended, also if it is released."""
    open_ones = connections_in_transaction()
    for single in lease.leases:
        if open_ones and single.depth == 1:  # else an outer hold outlasts this one, or it is kept already
            single.depth += 1
            _watch(DeferredRelease(single, set(open_ones)))


def section_of(connection: BaseDatabaseWrapper) -> Any:
    """Return the locked transaction that a connection is in, or None."""
    blocks = open_blocks(connection)
    return getattr(blocks[0], "section", None) if blocks else None


def open_blocks(connection: BaseDatabaseWrapper) -> list[Any]:
    """The atomic blocks that are open, without those that TestCase wraps around each test."""
    blocks: list[Any] = connection.atomic_blocks
    return [block for block in blocks if not block._from_testcase]


def connections_in_transaction() -> list[BaseDatabaseWrapper]:
    """Return those of this thread's connections that have an open transaction."""
    return [connection for connection in _of_this_thread() if open_blocks(connection)]


def _of_this_thread() -> list[BaseDatabaseWrapper]:
    """Return `connections.all(initialized_only=True)`, which is twice as slow: every acquire asks."""
    present: Any = connections._connections  # type: ignore[attr-defined]
    found = [getattr(present, alias, None) for alias in connections.settings]
    return [connection for connection in found if connection is not None]


def refuse_open_transactions(names: Sequence[str]) -> None:
    """Raise LockTransactionError if a database of this thread has an open transaction: it ends too late."""
    for connection in _of_this_thread():
        if connection.in_atomic_block:
            if open_blocks(connection):
                raise LockTransactionError(
                    f"a transaction is open on database {connection.alias!r}, and the lock {shown(names)}"
                    " would be released before it commits: the next holder would read old data."
                    f" {_way_out(connection)}"
                )
        elif not (connection.autocommit if connection.connection else connection.settings_dict["AUTOCOMMIT"]):
            raise LockTransactionError(
                f"autocommit is off on database {connection.alias!r}: the lock {shown(names)} would be"
                " released before anything commits; set AUTOCOMMIT to True: the lock opens the transaction"
            )


def _way_out(connection: BaseDatabaseWrapper) -> str:
    if section := section_of(connection):
        held = shown(sorted(section.names))
        return f"Take every name and database in the outermost locked transaction; it has only {held}"
    advice = (
        "Put the lock outside: @distributed_lock above @transaction.atomic, or locked_transaction(…) instead"
        " of `with transaction.atomic()` around it; or on_open_transaction='hold' keeps the lock until that"
        " one has ended ('ignore' releases it before)"
    )
    if connection.settings_dict["ATOMIC_REQUESTS"]:
        advice += (
            f". ATOMIC_REQUESTS is on for {connection.alias!r}: decorate what the URLconf calls (for a class"
            " method_decorator on 'dispatch'), outermost, and name the database in using="
        )
    return advice


def shown(names: Sequence[str]) -> str:
    """Return names as an error shows them."""
    return ", ".join(repr(name) for name in names)


def let_go(lease: Lease, *, release: bool = True) -> None:
    """Release a lock after its transaction has ended; a failure is not the transaction's error."""
    try:
        lease.release() if release else lease.leave_to_expire()
    except BackendError as error:
        report_unreleased(lease, error)
        release_retrier.schedule_lease(lease)
    except LockError as error:  # a loss was logged when it was found
        logger.debug("after its transaction was settled, %r could not be released: %s", lease, error)
        release_retrier.schedule_lease(lease)
    except BaseException:  # a signal's handler: nobody knows whether the request has arrived
        release_retrier.schedule_lease(lease)
        raise


@contextmanager
def committing_under(lease: Lease, connection: BaseDatabaseWrapper, by: object) -> Iterator[None]:
    """Have each COMMIT of a connection in this block go through `commit_under`."""
    own = vars(connection)
    before = own.get("_commit")  # below `commit`, which a Watch replaces and puts back
    commit = connection._commit  # type: ignore[attr-defined]
    own["_commit"] = partial(commit_under, [lease], connection, by, commit)
    try:
        yield
    finally:
        own.pop("_commit", None)
        if before is not None:
            own["_commit"] = before


def commit_under(
    leases: Sequence[Lease], connection: BaseDatabaseWrapper, by: object, commit: Callable[[], Any]
) -> Any:
    """Commit while these leases are held, which none of them ends before the server's answer.

    Where something else ends the wait for it, such as what a signal's handler raises, the server may still be
    at work. Then they are left to their ttl: see `SingleLease.unsettled`. `by` stands for this COMMIT there.
    """
    for single in _separate(leases):
        single.unsettled.add(by)  # before it is sent, for a signal may come at any moment
    try:
        answer = commit()
    except BaseException as error:
        if may_still_commit(connection, error):
            with suppress(Error):  # else Django fails as it puts autocommit back, and that hides `error`
                connection.close()
        else:
            settle_commit(leases, by)
        raise
    settle_commit(leases, by)
    return answer


def settle_commit(leases: Sequence[Lease], by: object) -> None:
    """Note that the server is done with a COMMIT, whatever became of it."""
    for single in _separate(leases):
        single.unsettled.discard(by)


def _separate(leases: Sequence[Lease]) -> list[SingleLease]:
    """The leases of the single names, but those of locks that the database itself ends with the COMMIT."""
    singles = (single for lease in leases for single in lease.leases)
    return [single for single in singles if single.backend.transaction_on is None]


@contextmanager
def release_after_transaction(
    acquire: Callable[[], Lease], open_connections: Sequence[BaseDatabaseWrapper], *, release: bool
) -> Iterator[Lease]:
    """Hold a lock from here until the last of these connections' transactions has ended; see `let_go`.

    Raises:
        LockTransactionError: a transaction that doesn't see what others commit, or whose end can't be seen.
    """
    for connection in open_connections:
        _refuse_blind(connection)
    hold = DeferredRelease(acquire(), set(open_connections), release)
    _watch(hold)
    yield hold.lease


@dataclass(slots=True, eq=False)
class DeferredRelease:
    """One lease and the transactions that it outlasts."""

    lease: Lease
    pending: set[BaseDatabaseWrapper]
    release: bool = True

    def ended(self, connection: BaseDatabaseWrapper) -> None:
        """Note the end of one transaction; release after the last."""
        self.pending.discard(connection)
        if not self.pending:
            let_go(self.lease, release=self.release)


class Watch:
    """Watches one connection until its open transaction has ended."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.holds: list[DeferredRelease] = []
        self.block = open_blocks(connection)[0]
        self._calls = 0
        self._replaced: dict[str, Any] = {}
        for name in WATCHED:
            self._replaced[name] = partial(self._call, name, getattr(connection, name))
            setattr(connection, name, self._replaced[name])
        setattr(connection, WATCH, self)

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if name == "commit":
            return self._commit(method)
        self._calls += 1
        try:
            return method(*args, **options)
        finally:
            self._calls -= 1
            # A hook of on_commit may begin and end transactions of its own inside of set_autocommit.
            if not self._calls and self._is_over():
                self._finish()

    def _commit(self, method: Callable[..., Any]) -> Any:
        """Commit only what is still under its locks; Django itself rolls back for database errors alone."""
        try:
            for hold in self.holds:
                hold.lease.confirm()
        except BaseException:
            self.connection.rollback()
            raise
        return commit_under([hold.lease for hold in self.holds], self.connection, self, method)

    def _is_over(self) -> bool:
        return self.connection.closed_in_transaction or self.block not in self.connection.atomic_blocks

    def _finish(self) -> None:
        vars(self.connection).pop(WATCH, None)
        for name, ours in self._replaced.items():
            if vars(self.connection).get(name) is ours:  # else it was wrapped further, and ours is inert
                delattr(self.connection, name)
        holds, self.holds = self.holds, []
        with ExitStack() as each:  # the last first; one that a signal interrupts keeps none of the others
            for hold in holds:
                each.callback(hold.ended, self.connection)


def _watch(hold: DeferredRelease) -> None:
    for connection in hold.pending:
        watch: Watch = vars(connection).get(WATCH) or Watch(connection)
        watch.holds.append(hold)


def _refuse_blind(connection: BaseDatabaseWrapper) -> None:
    """Refuse an isolation level under which the lock has no effect: earlier commits of others stay unseen."""
    if not connection.commit_on_exit:
        raise LockTransactionError(
            f"autocommit is off on database {connection.alias!r}: its transaction doesn't end with its atomic"
            " block, so the time to release is unknown; set AUTOCOMMIT to True"
        )
    level = _isolation(connection)
    if level not in ("read committed", "read uncommitted"):
        raise LockTransactionError(
            f"the open transaction on database {connection.alias!r} runs at {level or 'an unknown level'}: it"
            " keeps reading data from before the lock; use read committed, or put the lock outside"
        )


def _isolation(connection: BaseDatabaseWrapper) -> str:
    """The isolation level of the open transaction, in small letters."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            return str(cursor.fetchone()[0])
    if connection.vendor == "mysql":
        return str(getattr(connection, "isolation_level", None) or "the server's default level")
    return "read committed" if connection.vendor == "oracle" else "serializable"
