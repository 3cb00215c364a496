"""What a strategy is given and what it has to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.core.checks import CheckMessage
from django.db import connections, transaction
from django.db.utils import DatabaseError, Error, InterfaceError, InternalError, OperationalError

from inventory import ledger
from inventory.answers import as_stored, restored
from inventory.conf import AliasSettings
from inventory.exceptions import Busy, DatabaseUnavailable, InventoryError, OutcomeUnknown, TransactionError
from inventory.hooks import reach
from inventory.ledger import Posted, Wanted, in_transaction, look_up, take_one
from inventory.lines import Line

if TYPE_CHECKING:
    from inventory.api import Stock

CONNECTION_ERRORS: Final = (OperationalError, InterfaceError, InternalError)

_BUSY: Final = frozenset({"40001", "40P01", "55P03", "55006"})  # serialization, deadlock, lock timeout
_BUSY_CODES: Final = frozenset({1205, 1213, 1020, 3572})  # MySQL's: lock wait, deadlock, changed, NOWAIT
_REFUSED: Final = frozenset({"22", "23", "25", "40", "42", "53", "55"})
"""SQLSTATE classes that the server answers with, having rolled back."""

WOULD_COMMIT_LATE: Final = (
    "stock.sell(write=…) can't lead inside an open transaction: the strategy {name!r} must commit before it "
    "lets go of its lock. Leave the transaction (transaction.non_atomic_requests for ATOMIC_REQUESTS), or "
    "call stock.sell() without write in it, which is exact by itself."
)


class Repeated(Exception):
    """Undo what was written before its cause was found used, or its units gone: the first sale counts."""


class SoldLines(tuple[Line, ...]):
    """What `write` gets: pairs of SKU and quantity, and what the sale was called with.

    Attributes:
        cause: of the sale. data: what the caller gave `sell` as `data`.
    """

    cause: str
    data: Any

    def items(self) -> tuple[Line, ...]:
        """Return the pairs, as a dict does."""
        return tuple(self)


class Progress:
    """How far work is: once something is `written`, a failure may come from its COMMIT."""

    written = False


class Sale(Progress):
    """One sale, as a strategy sees it.

    Attributes:
        lines: what is sold, in order of the SKUs. cause: names it. using: the database's alias.
        posted: the ledger's entry, once the units are taken. value: what the caller's `write` returned.
    """

    def __init__(
        self, stock: Stock, wanted: Wanted, *, write: Callable[..., Any] | None = None,
        write_many: Callable[..., Sequence[Any]] | None = None,
        post: Callable[[Wanted, float | None], Posted] | None = None, data: Any = None,
    ) -> None:  # fmt: skip
        self.wanted, self.using, self.wait = wanted, stock.using, stock.settings.wait
        self.cause, self.lines = wanted.cause, SoldLines(wanted.lines)
        self.lines.cause, self.lines.data = wanted.cause, data
        self.write_many = write_many
        self._write, self._post = write, post
        self.restart()

    def restart(self) -> None:
        """Begin again: the transaction before this one was rolled back."""
        self.posted: Posted | None = None
        self.value: Any = None
        self.written = False

    # How callers run it.

    def run_in_yours(self) -> Posted:
        """Take the units in the caller's transaction, or in one of its own where none is open."""
        with Understood(self.cause, connections[self.using]), in_transaction(self.using):
            return self._take(None)

    def run_by(self, strategy: Strategy | None) -> Any:
        """Have the strategy lead, or none for what was reserved, and return what `write` returned."""
        connection, sell = connections[self.using], strategy.sell if strategy else Sale.in_transaction
        if strategy and strategy.leads and connection.in_atomic_block and not _is_of_a_test(connection):
            raise TransactionError(WOULD_COMMIT_LATE.format(name=strategy.name))
        with Understood(self.cause, connection, self):
            try:
                sell(self)
            except Repeated:
                self.repeated()
        return self.value

    # What strategies call.

    def in_transaction(self) -> None:
        """Take the units and write, in one transaction, committed when this returns."""
        with self.transaction():
            self.take()
            self.write()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open the sale's transaction; it is committed when the block ends."""
        connection = connections[self.using]
        self.restart()
        with transaction.atomic(using=self.using, savepoint=False):
            opened = connection.connection
            yield
            if connection.connection is not opened or connection.get_rollback() or _has_ended(connection):
                raise TransactionError(
                    "write() has ended the transaction of the sale, or swallowed an error of the database "
                    "in it. What was rolled back isn't sold; what SQL of its own has committed is, and "
                    "repeating the call tells. Let errors out, or catch them around an atomic of yours."
                )
        reach("committed")

    def take(self) -> Posted:
        """Take the units, in the current transaction.

        Raises:
            SoldOut, UnknownSku, CauseUsed: nothing was taken.
        """
        return self._take(self.wait)

    def _take(self, wait: float | None) -> Posted:
        self.posted = (
            self._post(self.wanted, wait) if self._post else take_one(self.wanted, self.using, wait=wait)
        )
        reach("decided")
        return self.posted

    @property
    def entry(self) -> Posted:
        """The ledger's entry, after the units were taken."""
        assert self.posted is not None, "take() comes first"
        return self.posted

    def write(self, *, keep: bool = True) -> None:
        """Call the caller's `write`; a repeated sale gives the first one's value again.

        Args:
            keep: store the value with the entry; a batch stores those of all at once.
        """
        if self.posted is not None and self.posted.repeated:
            self.value = restored(self.posted.answer, self.using)
            return
        if self._write is not None:
            self.value = self._write(self.lines)
        elif self.write_many is not None:
            (self.value,) = self.write_many([self.lines])
        self.written = True
        reach("recorded")
        if keep and self.posted is not None:
            self.keep_answer()

    def keep_answer(self) -> None:
        """Store what `write` returned beside the entry, in the current transaction."""
        if self.entry.repeated:  # another call with this cause was first: this one must not add a second
            raise Repeated
        answer = as_stored(self.value)
        if answer is not None:
            ledger.store_answers({self.entry.id: answer}, self.using)

    def repeated(self) -> bool:
        """Return whether this cause was sold before, with its answer in `value`; outside any lock.

        Raises:
            CauseUsed: it was used for something else.
        """
        known = look_up(self.wanted, self.using)
        if isinstance(known, InventoryError):
            raise known
        if known is not None:
            self.posted, self.value = known, restored(known.answer, self.using)
        return known is not None


class Strategy(ABC):
    """Leads sales that are given `write`. Subclass it, and run `inventory.testing.StrategyContract` on it.

    Attributes:
        name: for errors and metrics.
        leads: it opens the transaction itself, and can't do so inside another one.
    """

    name: ClassVar[str]
    leads: ClassVar[bool] = True

    def __init__(self, settings: AliasSettings) -> None:
        self.settings = settings

    @abstractmethod
    def sell(self, sale: Sale) -> None:
        """Make the sale: `sale.in_transaction()` with whatever this strategy puts around it, or its parts.

        Raises:
            SoldOut, Busy: nothing was sold.
        """

    def check(self) -> list[CheckMessage]:
        """Return what is wrong with the settings or the database, without asking a server."""
        return []

    def stock_changed(self, skus: set[str]) -> None:  # noqa: B027 - most strategies keep no copy
        """Take notice that there may be more of these items; called after the commit."""


class Understood:
    """Say what an error of the database means for the caller: busy, nothing done, or unknown.

    In a caller's transaction it is left as it is where the connection is lost: the caller's COMMIT decides.
    """

    def __init__(self, cause: str, connection: Any, sale: Progress | None = None) -> None:
        self._cause, self._connection, self._sale = cause, connection, sale

    def __enter__(self) -> None:
        self._outer = self._connection.in_atomic_block

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, CONNECTION_ERRORS):
            return
        state, code = _sqlstate(error)
        if state in _BUSY or code in _BUSY_CODES or "database is locked" in str(error):
            if state in ("40P01",) or code == 1213:
                reach("deadlocked")
            if self._outer:  # MySQL has undone the whole transaction, whatever the caller makes of Busy
                self._connection.needs_rollback = True
            raise Busy(f"the stock stayed locked: {str(error).splitlines()[0]}") from error
        if self._outer:
            return
        if (self._sale is None or self._sale.written) and not all(map(was_refused, failures(error))):
            raise OutcomeUnknown(self._cause) from error
        raise DatabaseUnavailable(
            f"the database failed before {self._cause!r} was committed; nothing was changed"
        ) from error


def _sqlstate(error: Exception) -> tuple[str, int]:
    cause = error.__cause__
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return getattr(cause, "sqlstate", None) or "", code


def was_refused(error: Error) -> bool:
    """Return whether the server has answered with this error, and rolled back."""
    state, code = _sqlstate(error)
    return state[:2] in _REFUSED or code in _BUSY_CODES


def failures(error: BaseException | None, kind: type[Error] = DatabaseError) -> Iterator[Error]:
    """Yield the database's errors behind an error: Django's reconnecting hides the loss of a COMMIT."""
    while error is not None:
        if isinstance(error, kind):
            yield error
        error = error.__context__


def _has_ended(connection: Any) -> bool:
    """Return whether the transaction was ended behind Django's back, by SQL of the caller's."""
    if connection.vendor == "postgresql":
        return bool(connection.connection.info.transaction_status == 0)
    if connection.vendor == "sqlite":
        return not connection.connection.in_transaction
    return False


def _is_of_a_test(connection: Any) -> bool:
    """Return whether the open transaction is the one that Django's TestCase keeps around a test."""
    return all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
