"""The contract catches every wrong strategy, each by the test that is about its mistake."""

import inspect

import pytest
from django.db import IntegrityError, connection, transaction

from inventory import SoldOut, Stock, TransactionError
from inventory.strategies import Strategy
from inventory.testing import StrategyContract
from tests.stock import wrong

CAUGHT_BY = {
    "LostUpdate": ("test_it_sells_and_returns_what_write_returned", IntegrityError),
    "CheckThenAct": ("test_threads_never_oversell", AssertionError),
    "NeverTakes": ("test_it_sells_and_returns_what_write_returned", AssertionError),
    "CommitsTheUnitsFirst": ("test_a_write_that_raises_undoes_the_sale", AssertionError),
    "WritesTheOrderFirst": ("test_sold_out_names_every_short_line_and_changes_nothing", AssertionError),
    "SwallowsTheRefusal": ("test_sold_out_names_every_short_line_and_changes_nothing", pytest.fail.Exception),
    "RetriesUnderANewName": ("test_a_cause_counts_once", SoldOut),
    "SellsLineByLine": ("test_sold_out_names_every_short_line_and_changes_nothing", AssertionError),
    "AnswersBeforeTheCommit": ("test_it_sells_and_returns_what_write_returned", AssertionError),
    "OnlyBooks": ("test_it_sells_and_returns_what_write_returned", AssertionError),
}


def test_each_wrong_strategy_is_tried():
    found = {name for name, cls in vars(wrong).items() if inspect.isclass(cls) and issubclass(cls, Strategy)}
    assert found - {"Strategy", "Wrong"} == set(CAUGHT_BY)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", CAUGHT_BY)
def test_the_contract_catches_it(strategy):
    test, error = CAUGHT_BY[strategy]
    contract = StrategyContract()
    contract.stock, contract.sku = Stock(strategy=f"tests.stock.wrong.{strategy}"), f"wrong-{strategy}"
    try:
        with pytest.raises(error):
            getattr(contract, test)()
    finally:
        connection.close()  # one of them leaves its transaction open


@pytest.mark.django_db(transaction=True)
def test_a_write_that_commits_is_refused():
    """SQL of the caller's that ends the transaction is found out before anything is answered."""
    stock = Stock()
    stock.receive("mug", 1, cause="in")

    def write(lines):
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")

    with pytest.raises(TransactionError, match="has ended the transaction"):
        stock.sell({"mug": 1}, cause="a", write=write)
    assert stock.available("mug") == 1


@pytest.mark.django_db(transaction=True)
def test_units_that_rolled_back_are_for_sale():
    stock = Stock()
    stock.receive("mug", 1, cause="in")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        stock.sell({"mug": 1}, cause="a")
        raise ZeroDivisionError
    assert stock.available("mug") == 1
