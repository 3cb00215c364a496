"""`manage.py oversell --path yourshop.checkout.place`: the race for the terminal."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils.module_loading import import_string

from inventory.racing import RaceError, race
from inventory.racing.picture import as_svg, as_text

BAD_INPUT = 2

EPILOG = """
The race is held on test databases that are created and destroyed, unless --here is given. Exit status: 0 what
there was was sold, no more; 1 it was oversold, or a sale left no trace, or nothing was sold; 2 the race can't
be held.
"""


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a whole number of at least `least` from the command line."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


class Command(BaseCommand):
    """Race your own checkout, and say whether it oversells."""

    help = (
        "Let many buyers call your own function at the same moment, and compare what was sold with the stock."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options; a project's own command `oversell` may leave the numbers to itself."""
        parser.epilog = EPILOG.strip()
        self.add_path_arguments(parser, required=True)
        parser.add_argument("--buyers", type=at_least(2), default=40, metavar="N", help="each wants one unit")
        parser.add_argument("--stock", type=at_least(0), default=10, metavar="N", help="units that there are")
        parser.add_argument("--processes", type=at_least(1), metavar="N", help="over which they are spread")

    def add_path_arguments(self, parser: CommandParser, *, required: bool = False) -> None:
        """Declare what names the code to be raced."""
        parser.add_argument(
            "--path",
            required=required,
            metavar="DOTTED.PATH",
            help="your function; true or a return is a sale",
        )
        parser.add_argument(
            "--setup",
            metavar="DOTTED.PATH",
            help="called before: makes the product; --path gets what it returns",
        )
        parser.add_argument("--count", metavar="DOTTED.PATH", help="your function that counts the stock")
        parser.add_argument("--here", action="store_true", help="race on the databases of your settings")
        parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture there")

    def handle(self, *args: Any, **options: Any) -> None:
        """Hold the race."""
        self.race_path(options)

    def race_path(self, options: dict[str, Any]) -> None:
        """Race the function at `--path`, print what came, and judge."""
        sell, setup, count = (named(options[name]) for name in ("path", "setup", "count"))
        try:
            with databases(here=options["here"]):
                made = setup() if setup else None
                result = race(
                    sell if made is None else lambda: sell(made),
                    buyers=options["buyers"],
                    stock=count or options["stock"],
                    processes=options["processes"],
                )
        except RaceError as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from None
        if options["svg"]:
            options["svg"].write_text(as_svg(result), encoding="utf-8")
        self.stdout.write(f"{result}\n")
        if not result.exact:
            self.stdout.write(f"\n{as_text(result)}\n")
            raise CommandError("the checkout is not exact", returncode=1)


def named(path: str | None) -> Any:
    """Return the function at a dotted path, None without one.

    Raises:
        CommandError: there is none.
    """
    try:
        found = path and import_string(path)
    except ImportError as error:
        raise CommandError(f"{path!r} can't be imported: {error}", returncode=BAD_INPUT) from None
    if path and not callable(found):
        raise CommandError(f"{path!r} is not a function but {found!r}", returncode=BAD_INPUT)
    return found


@contextmanager
def databases(*, here: bool) -> Iterator[None]:
    """Put test databases in the place of the project's, unless `here`."""
    if here:
        yield
        return
    from django.test.utils import setup_databases, teardown_databases

    before = setup_databases(verbosity=0, interactive=False)
    try:
        yield
    finally:
        for connection in connections.all():
            connection.close()
        teardown_databases(before, verbosity=0)
