"""A lock taken inside a transaction that is open already, and held until that transaction has ended.

Django tells of a commit (`on_commit`), never of a rollback. Both end in the connection's own methods: the
outermost `atomic` calls `commit` or `rollback` and then, always, `set_autocommit(True)`, in which the
`on_commit` hooks run; one under a TestCase ends its savepoint; a closed connection ends everything. So for
the length of the hold these methods of this one connection object are watched, and what was held is let go
behind the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import atomic

from locking.exceptions import LockTransactionError
from locking.lease import Lease
from locking.lock import Lock

OnOpenTransaction = Literal["refuse", "hold"]

WATCHED: Final = ("commit", "set_autocommit", "savepoint_commit", "savepoint_rollback", "close")
WATCH: Final = "_locking_watch"


def check_on_open_transaction(value: object, *, fenced: bool = False, retries: int = 0) -> None:
    """Raise ValueError for what isn't one of the two, or can't go together with `hold`."""
    if value not in ("refuse", "hold"):
        raise ValueError(f"on_open_transaction={value!r} must be 'refuse' or 'hold'")
    if value == "hold" and (fenced or retries):
        option, needs = ("fenced", "stand first in") if fenced else ("retries", "begin anew")
        raise ValueError(
            f"on_open_transaction='hold' can't go together with {option}: that has to {needs} the"
            " transaction, which is open already; put the lock outside of it"
        )


@contextmanager
def held_over(
    lock: Lock,
    aliases: Sequence[str],
    open_connections: Sequence[BaseDatabaseWrapper],
    let_go: Callable[[Lease], None],
) -> Iterator[Lease]:
    """Hold `lock` from here until the last of these connections' transactions has ended.

    The body runs in a block of its own (a savepoint, or a transaction of a database that has none open).

    Args:
        lock: what to hold.
        aliases: the databases that the body writes to.
        open_connections: those of this thread's connections that are in a transaction.
        let_go: ends the hold; must not raise.

    Raises:
        LockTransactionError: a transaction that doesn't see what others commit, or whose end can't be seen.
    """
    for connection in open_connections:
        _refuse_blind(connection)
    hold = Hold(lock.acquire(), set(open_connections), let_go)
    for connection in open_connections:
        _watch_of(connection).holds.append(hold)
    with ExitStack() as blocks:
        for alias in aliases:
            blocks.enter_context(atomic(alias))
        yield hold.lease


@dataclass(slots=True, eq=False)
class Hold:
    """One lease and the transactions that it outlasts."""

    lease: Lease
    pending: set[BaseDatabaseWrapper]
    let_go: Callable[[Lease], None]

    def ended(self, connection: BaseDatabaseWrapper) -> None:
        """Note the end of one transaction; let go after the last."""
        self.pending.discard(connection)
        if not self.pending:
            self.let_go(self.lease)


class Watch:
    """Watches one connection until its open transaction has ended."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.holds: list[Hold] = []
        blocks: list[Any] = connection.atomic_blocks
        self.block = next(block for block in blocks if not block._from_testcase)
        self._calls = 0
        self._replaced: dict[str, Any] = {}
        for name in WATCHED:
            self._replaced[name] = partial(self._call, name, getattr(connection, name))
            setattr(connection, name, self._replaced[name])

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
        return method()

    def _is_over(self) -> bool:
        return self.connection.closed_in_transaction or self.block not in self.connection.atomic_blocks

    def _finish(self) -> None:
        vars(self.connection).pop(WATCH, None)
        for name, ours in self._replaced.items():
            if (
                vars(self.connection).get(name) is ours
            ):  # else somebody has wrapped it further, and it is inert
                delattr(self.connection, name)
        holds, self.holds = self.holds, []
        for hold in reversed(holds):
            hold.ended(self.connection)


def _watch_of(connection: BaseDatabaseWrapper) -> Watch:
    watch: Watch | None = vars(connection).get(WATCH)
    if watch is None:
        watch = Watch(connection)
        setattr(connection, WATCH, watch)
    return watch


def _refuse_blind(connection: BaseDatabaseWrapper) -> None:
    """Refuse where the lock would order nothing: what others committed before it was ours stays unseen."""
    if not connection.commit_on_exit:
        raise LockTransactionError(
            f"autocommit is off on database {connection.alias!r}: its transaction doesn't end with its atomic"
            " block, so nobody could tell when to release; set AUTOCOMMIT to True"
        )
    level = _isolation(connection)
    if level not in ("read committed", "read uncommitted"):
        raise LockTransactionError(
            f"the open transaction on database {connection.alias!r} runs at {level or 'an unknown level'}: it"
            " goes on seeing what there was before the lock; use read committed, or put the lock outside"
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
