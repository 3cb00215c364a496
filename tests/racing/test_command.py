"""`manage.py oversell --path`: the race for the terminal, alone and as part of the shop's own command."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from inventory.racing.command import Command
from tests.racing import bookshop
from tests.racing.bookshop import Book

SOLD: list[int] = []


def setup() -> int:
    """Make what is sold."""
    with connection.schema_editor() as editor:
        editor.create_model(Book)
    return int(Book.objects.create(stock=3).pk)


def oversells(pk: int) -> bool:
    """Sell wrongly."""
    return bookshop.read_modify_write(pk)


def is_exact(pk: int) -> bool:
    """Sell rightly."""
    return bookshop.conditional_update(pk)


def left() -> int:
    """Count the stock."""
    return Book.objects.get().stock


@pytest.fixture
def no_table(transactional_db):
    """The table that `setup` makes is gone behind the test."""
    yield
    connection.close()
    with connection.schema_editor() as editor:
        editor.delete_model(Book)


def run(command, name, *arguments):
    """Run a command on this test's database; return what it printed."""
    out = StringIO()
    options = ["--here", "--setup", f"{__name__}.setup", "--buyers", "6", "--stock", "3"]
    call_command(command, "--path", f"{__name__}.{name}", *options, *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("command", [Command(), "oversell"], ids=["the package's", "the shop's"])
def test_an_exact_checkout_is_said_to_be(no_table, command):
    """Exit status 0, and one line."""
    said = run(command, "is_exact", "--count", f"{__name__}.left", "--processes", "2")
    assert "3 sold, 3 in stock (6 buyers in 2 processes)." in said


def test_an_oversell_is_an_error_with_a_picture(no_table, tmp_path):
    """Exit status 1, the two buyers, and an SVG where it was wanted."""
    with pytest.raises(CommandError) as failed:
        run(Command(), "oversells", "--svg", str(tmp_path / "race.svg"))
    assert failed.value.returncode == 1
    assert (tmp_path / "race.svg").read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nowhere.at_all", "'nowhere.at_all' can't be imported: "),
        (f"{__name__}.SOLD", "is not a function but []"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path, text):
    """With the reason, before anything is made."""
    with pytest.raises(CommandError, match=re.escape(text)) as failed:
        call_command(Command(), "--path", path)
    assert failed.value.returncode == 2
