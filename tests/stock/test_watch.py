"""Low stock and back in stock: after the commit, once per crossing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import Q

from inventory import Stock
from inventory.signals import posted
from inventory.testing import race_threads
from inventory.watch import crossed
from tests.stock.shop.models import Book

LOW = Q(stock__available__lte=2)


def look(using: str) -> tuple[list[str], list[str]]:
    """Return the titles that have become low, and those that have enough again."""
    low, enough = crossed(Book.objects.using(using), LOW, "low_since")
    return [book.title for book in low], [book.title for book in enough]


def shelve(stock: Stock, units: int = 5) -> Book:
    """Make a book with so many units."""
    book = Book.objects.using(stock.using).create(title="Emma")
    stock.receive(book.stock.sku, units, cause="po-1")
    return book


def test_each_crossing_is_noticed_once(stock: Stock, using: str) -> None:
    book = shelve(stock)
    assert look(using) == ([], [])
    book.stock.sell(3, cause="o-1")
    assert look(using) == (["Emma"], [])
    book.stock.sell(1, cause="o-2")  # still low
    assert look(using) == ([], [])
    stock.receive(book.stock.sku, 9, cause="po-2")
    assert look(using) == ([], ["Emma"])
    assert look(using) == ([], [])


def test_a_crossing_that_is_rolled_back_is_noticed_again(stock: Stock, using: str) -> None:
    shelve(stock, 1)
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=using):
        assert look(using) == (["Emma"], [])
        raise ZeroDivisionError
    assert look(using) == (["Emma"], [])


def test_of_many_that_look_at_once_one_gets_it(committing: str) -> None:
    stock = Stock(database=committing)
    book = shelve(stock, 1)

    def notice() -> list[str]:
        try:
            return look(committing)[0]
        finally:
            connections[committing].close()

    found = race_threads([notice] * 8)
    assert sorted(found) == [[]] * 7 + [["Emma"]]
    book.refresh_from_db(using=committing)
    assert book.low_since is not None


@contextmanager
def heard() -> Any:
    """Collect what `posted` sends."""
    said: list[tuple[int, set[str]]] = []

    def hear(entries: list[int], skus: set[str], **_: Any) -> None:
        said.append((len(entries), skus))

    posted.connect(hear)
    try:
        yield said
    finally:
        posted.disconnect(hear)


def test_the_signal_comes_after_the_commit_and_once(committing: str) -> None:
    stock = Stock(database=committing)
    book = shelve(stock)
    sku = book.stock.sku
    with heard() as said:
        with transaction.atomic(using=committing):
            book.stock.sell(1, cause="o-1")
            assert said == []
        assert said == [(1, {sku})]
        book.stock.sell(1, cause="o-1")  # repeated: nothing has changed
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=committing):
            book.stock.sell(1, cause="o-2")
            raise ZeroDivisionError
        assert said == [(1, {sku})]
