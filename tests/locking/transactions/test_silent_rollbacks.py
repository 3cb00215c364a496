"""A transaction that the database itself has rolled back: never taken for a success."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import pytest
from django.db import DatabaseError, connections, transaction
from django.db.transaction import TransactionManagementError

from locking import LockTransactionError, locked_transaction
from locking.transactions.locked_transaction import transaction_without_lock
from locking.utils import databases
from tests.locking.support.fenced_databases import MARIADB, SQLITE, sales, sell

pytestmark = pytest.mark.django_db(transaction=True)


def execute(alias: str, sql: str) -> None:
    """Run one statement."""
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)


def fail_with_a_rollback(alias: str) -> None:
    """Have a statement fail so that SQLite gives the whole transaction up."""
    execute(alias, "CREATE UNIQUE INDEX one_each ON sale (buyer)")
    execute(alias, "INSERT OR ROLLBACK INTO sale (buyer) VALUES ('one')")


def be_chosen_in_a_deadlock(alias: str) -> None:
    """Read a row that another transaction has changed, and which waits for one that this one has changed.

    The other has written more, so MariaDB gives this one up, whichever of the two asks last.
    """
    changed = threading.Event()

    def change_both() -> None:
        with suppress(DatabaseError), transaction.atomic(using=alias):
            execute(alias, "UPDATE sale SET buyer = 'theirs' WHERE buyer LIKE 'many%'")
            changed.set()
            execute(alias, "UPDATE sale SET buyer = 'theirs' WHERE buyer = 'one'")
            transaction.set_rollback(True, using=alias)
        connections[alias].close()

    other = threading.Thread(target=change_both)
    execute(alias, "UPDATE sale SET buyer = 'ours' WHERE buyer = 'one'")
    other.start()
    changed.wait(30)
    try:
        execute(alias, "SELECT * FROM sale WHERE buyer = 'many 1' FOR UPDATE")
    finally:
        other.join(30)


GIVEN_UP = pytest.mark.parametrize(
    ("fenced_database", "give_up"),
    [(SQLITE, fail_with_a_rollback), (MARIADB[0], be_chosen_in_a_deadlock)],
    indirect=["fenced_database"],
    ids=["sqlite", "mariadb"],
)
BLOCKS: dict[str, Callable[[str], AbstractContextManager[object]]] = {
    "locked": lambda alias: locked_transaction("shop", using=alias),
    "in an open transaction": lambda alias: locked_transaction(
        "shop", using=alias, on_open_transaction="ignore"
    ),
    "without a lock": lambda alias: transaction_without_lock([alias]),
}


@pytest.fixture
def rows(fenced_database: str) -> None:
    """Rows of which each can be locked by itself."""
    execute(fenced_database, "CREATE INDEX by_buyer ON sale (buyer)")
    for buyer in ("one", *(f"many {number}" for number in range(20))):
        sell(buyer, fenced_database)


def swallow_the_error(block: str, alias: str, give_up: Callable[[str], None]) -> None:
    """Sell, catch the error that ends the transaction, and sell on."""
    around = transaction.atomic() if block == "in an open transaction" else nullcontext()
    with around, BLOCKS[block](alias):
        sell("before", alias)
        with suppress(DatabaseError):
            give_up(alias)
        with suppress(TransactionManagementError):
            sell("after", alias)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("block", BLOCKS)
@GIVEN_UP
def test_a_transaction_that_the_database_gave_up_is_no_success(
    fenced_database: str, give_up: Callable[[str], None], block: str
) -> None:
    """MySQL and SQLite end a transaction with some errors: where such an error is caught, what follows isn't
    stored by itself, and the block raises.
    """
    with pytest.raises(LockTransactionError, match="can't commit") as caught:
        swallow_the_error(block, fenced_database, give_up)
    assert isinstance(caught.value.__cause__, DatabaseError)
    assert {"before", "after"}.isdisjoint(sales(fenced_database))


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("fenced_database", [SQLITE], indirect=True, ids=str)
def test_without_the_note_lost_work_passes_for_a_success(
    fenced_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the block returns, its first half is gone and its second is stored."""
    monkeypatch.setattr(databases, "note_rollback", lambda execute, *given: execute(*given))
    swallow_the_error("locked", fenced_database, fail_with_a_rollback)
    assert {"before", "after"}.intersection(sales(fenced_database)) == {"after"}
