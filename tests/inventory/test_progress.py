"""What may be said of a sale when the database fails: by how far it was, whatever fails last."""

import psycopg
import pytest
from django.db import DataError, InterfaceError, InternalError, OperationalError, connection, transaction

from inventory.progress import SaleProgress

LOST = OperationalError("server closed the connection unexpectedly")


def refused(sqlstate: type[psycopg.Error]) -> OperationalError:
    """Return what Django raises when the server itself refused."""
    error = OperationalError("refused")
    error.__cause__ = sqlstate("refused")
    return error


def written() -> SaleProgress:
    """Return a sale whose rows are written."""
    progress = SaleProgress()
    progress.written = True
    return progress


@pytest.mark.parametrize("error", [LOST, InterfaceError("connection is closed")])
def test_a_connection_that_is_lost_before_the_rows_are_written_sold_nothing(error):
    """No COMMIT can have been sent."""
    assert not SaleProgress().is_unknown_after(error)


@pytest.mark.parametrize("error", [LOST, InterfaceError("connection is closed"), InternalError("bad page")])
def test_a_connection_that_is_lost_after_that_leaves_the_outcome_unknown(error):
    """The COMMIT may have come through."""
    assert written().is_unknown_after(error)


@pytest.mark.parametrize(
    "error",
    [
        refused(psycopg.errors.DeadlockDetected),
        refused(psycopg.errors.ReadOnlySqlTransaction),
        refused(psycopg.errors.IdleInTransactionSessionTimeout),
        DataError("division by zero"),
        KeyboardInterrupt(),
    ],
)
def test_what_the_server_refused_sold_nothing(error):
    """A deadlock, a replica, a value that can't be, an end of the program: the transaction is rolled back."""
    assert not written().is_unknown_after(error)


def test_a_refusal_does_not_hide_the_loss_before_it():
    """COMMIT was lost, and the next connection refused for want of a slot: the first one counts."""
    error = refused(psycopg.errors.TooManyConnections)
    error.__context__ = LOST
    assert written().is_unknown_after(error)


@pytest.mark.django_db(transaction=True)
def test_a_commit_is_noted_and_a_rollback_is_not():
    """The commit's hook notes it; after that no error is the sale's."""
    progress = SaleProgress()
    with pytest.raises(OperationalError), transaction.atomic():
        progress.write()
        raise LOST
    assert (progress.written, progress.committed) == (True, False)
    with transaction.atomic():
        progress.restart()
        progress.write()
    assert progress.committed
    assert not progress.is_unknown_after(LOST)
    connection.close()
