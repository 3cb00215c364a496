"""How far one sale is, and what may be said of it when a server fails.

A lost connection alone doesn't tell whether a sale was made. What tells is how far the sale was: before its
rows are written no COMMIT has been sent, so nothing was sold; once its commit was confirmed, everything was.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db import Error, InterfaceError, InternalError, OperationalError, transaction

CONNECTION_ERRORS = (OperationalError, InterfaceError, InternalError)
"""What Django raises when the database fails, rather than the statement.

InternalError: a server that became a replica or whose disk is full writes nothing (25006), or it has ended a
transaction that stood idle (25P03).
"""

_REFUSALS = frozenset({"22", "23", "25", "40", "53", "55"})
"""SQLSTATE classes: data, constraint, transaction state, conflict or deadlock, resources, lock."""


class OutcomeUnknown(OperationalError):
    """The connection was lost in COMMIT: nobody knows whether the sale was made."""


class DatabaseUnavailable(OperationalError):
    """The database failed before any COMMIT was sent: nothing was sold."""


class SaleProgress:
    """What is known of one sale's transaction.

    Attributes:
        written: its rows were written, so that a COMMIT may have been sent.
        committed: the server confirmed the commit.

    Example:
        >>> progress = SaleProgress()
        >>> progress.is_unknown_after(OperationalError("server closed the connection"))
        False
    """

    __slots__ = ("committed", "written")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again: the transaction before this one was rolled back."""
        self.written = self.committed = False

    def write(self) -> None:
        """Note that the rows were written in the current transaction, and have its commit noted."""
        self.written = True
        transaction.on_commit(self.commit)

    def commit(self) -> None:
        """Note that the commit was confirmed."""
        self.written = self.committed = True

    def is_unknown_after(self, error: BaseException | None) -> bool:
        """Return whether the transaction that ended with `error` may have been committed."""
        if not self.written or self.committed:
            return False
        return isinstance(error, CONNECTION_ERRORS) and not all(map(refused_by_server, failures(error)))


def failures(error: BaseException | None) -> Iterator[Error]:
    """Yield the database's errors from this one back to the first.

    After a COMMIT without an answer Django connects anew: where that is refused, the refusal hides the loss.
    """
    while error is not None:
        if isinstance(error, Error):
            yield error
        error = error.__context__


def refused_by_server(error: Error) -> bool:
    """Return whether the server itself refused, and rolled back.

    Anything else, a lost connection above all, may have come after the commit.
    """
    return (getattr(error.__cause__, "sqlstate", None) or "")[:2] in _REFUSALS
