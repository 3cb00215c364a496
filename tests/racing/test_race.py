"""The race finds the oversell in code that uses nothing of this package, and passes what is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.urls import path

from inventory.racing import RaceError, race
from inventory.racing.picture import as_svg, as_text
from tests.racing import bookshop
from tests.racing.bookshop import Book

urlpatterns = [path("books/<int:pk>/buy/", bookshop.buy)]


def left(book):
    """Return what counts the stock of a book."""
    return lambda: Book.objects.get(pk=book.pk).stock


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("sell", [bookshop.read_modify_write, bookshop.check_then_subtract])
def test_a_check_before_a_write_oversells_every_time(book, sell, processes):
    """All twenty read ten before anyone writes, so all twenty are served."""
    result = race(lambda: sell(book.pk), buyers=20, processes=processes)
    assert (result.sold, result.too_many, result.exact) == (20, 10, False)
    assert result.shared
    first, second, reading = result.shared
    assert first != second
    assert str(reading) == f"stock = 10 in racing_bookshop_book (id {book.pk})"


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("sell", [bookshop.conditional_update, bookshop.row_lock])
def test_what_is_right_passes(book, sell, processes):
    """Ten are sold, and the stock has fallen by ten."""
    result = race(lambda: sell(book.pk), buyers=20, stock=left(book), processes=processes)
    assert (result.sold, result.before, result.after, result.exact) == (10, 10, 0, True)


def test_a_lock_of_one_process_is_found_out(book):
    """It passes in one process, and oversells in two."""
    sell = lambda: bookshop.locked_in_this_process(book.pk)  # noqa: E731
    assert race(sell, buyers=12, processes=1).exact
    Book.objects.update(stock=10)
    assert race(sell, buyers=12, stock=left(book), processes=2).untraced > 0


def test_a_sale_without_a_trace_is_found_where_nothing_is_oversold(book):
    """Four buyers for ten books: all are served rightly, and three updates are lost."""
    result = race(lambda: bookshop.read_modify_write(book.pk), buyers=4, stock=left(book))
    assert (result.too_many, result.untraced, result.exact) == (0, 3, False)
    assert "The stock fell by 1 for 4 sales: 3 sales left no trace." in str(result)


def test_the_fixture_fails_with_the_number_the_buyers_and_a_picture(book, oversell):
    """The message is all that a team needs; the picture is beside it."""
    with pytest.raises(pytest.fail.Exception) as failed:
        oversell(lambda: bookshop.read_modify_write(book.pk), buyers=15)
    text = str(failed.value)
    assert text.startswith("OVERSOLD by 5: 15 sold, 10 in stock (15 buyers in 2 processes).")
    assert re.search(r"Buyers \d+ and \d+ both read stock = 10 in racing_bookshop_book", text)
    assert re.search(r"^buyer \d+ +·*R·*W·* sold$", text, re.MULTILINE)
    picture = Path(text.rpartition("Picture: ")[2])
    assert picture.read_text().startswith("<svg ")


def test_the_fixture_passes_what_is_right(book, oversell):
    """With 40 buyers for 10 units, by default."""
    result = oversell(lambda: bookshop.conditional_update(book.pk))
    assert (len(result.buyers), result.sold) == (40, 10)


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_url_is_raced(book, processes):
    """Each buyer posts with a client of its own; 409 is a refusal."""
    result = race(f"/books/{book.pk}/buy/", buyers=12, processes=processes)
    assert (result.sold, result.too_many) == (12, 2)


def test_a_race_in_which_nothing_is_sold_shows_nothing(book):
    """A wrong call must not pass for a sound checkout: its errors are shown."""
    result = race(lambda: bookshop.read_modify_write(0), buyers=3)
    assert not result.exact
    assert "Nothing was sold, so nothing was raced" in str(result)
    assert "Refused, 3 ×: DoesNotExist" in str(result)


def test_a_buyer_may_know_its_number(book):
    """A function with an argument is given it; `sold` says what a sale is."""
    result = race(lambda buyer: {"buyer": buyer}, buyers=4, sold=lambda answer: answer["buyer"] < 3)
    assert [buyer.sold for buyer in result.buyers] == [True, True, True, False]


@pytest.mark.django_db
def test_an_open_transaction_is_refused():
    """The buyers could not see what the test has made."""
    with pytest.raises(RaceError, match=r"is inside a transaction.*transaction=True"):
        race(lambda: True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"buyers": 1}, "buyers=1: one buyer can't race"), ({"stock": -1}, "stock=-1: give the units")],
)
def test_a_race_that_can_not_be_held_is_refused(book, arguments, text):
    """With the value and the way out."""
    with pytest.raises(RaceError, match=re.escape(text)):
        race(lambda: True, **arguments)


def test_pictures_of_a_race_without_statements(book):
    """A function that asks no database can be raced as well."""
    result = race(lambda: True, buyers=12)
    assert result.too_many == 2
    assert "buyer 1" in as_text(result)
    assert "OVERSOLD by 2" in as_svg(result)
