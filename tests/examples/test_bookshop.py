"""`examples/bookshop`: a book of one's own, raced over HTTP by each strategy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inventory.conf import STRATEGIES
from tests import ROOT
from tests.private_redis import private_redis
from tests.support.scratch import gunicorn, scratch_database

COPIES, BUYERS = 20, 200

FILL = """
import django; django.setup()
from examples.bookshop.models import Book
book = Book.objects.create(title="Emma")
book.stock.receive(%d, cause=f"delivery of book {book.pk}")
print(book.pk)
"""
SOLD = """
import django; django.setup()
from django.db.models import Sum
from examples.bookshop.models import Book, Order
from inventory.models import Level
book = Book.objects.select_related("stock").get(pk=%s)
(level,) = Level.objects.filter(item=book.stock)
print([Order.objects.filter(book=book).count(), book.stock.available, level.committed])
"""


def run(environment: dict[str, str], *arguments: str) -> str:
    """Run Python in the shop's environment and return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def press(address: str, number: int) -> int:
    """Press the button, as one buyer; 503 and a cut connection are pressed again under the same token."""
    form = urllib.parse.urlencode({"copies": 1, "token": f"buyer {number} of {address}"}).encode()
    for _ in range(50):
        try:
            with urllib.request.urlopen(address, form, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            if error.code == 409:
                return 409
        except OSError:
            continue
    raise AssertionError("never answered")


def test_the_example_is_short() -> None:
    """The whole shop is at most sixty lines, templates apart."""
    files = (ROOT / "examples" / "bookshop").glob("*.py")
    assert sum(bool(line.strip()) for path in files for line in path.read_text().splitlines()) <= 60


@pytest.fixture(scope="module")
def shop(django_db_setup: None) -> Iterator[dict[str, str]]:
    """The environment of a shop whose database has its tables."""
    with scratch_database("bookshop") as database, private_redis() as redis:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
        environment |= {
            "DJANGO_SETTINGS_MODULE": "examples.bookshop.settings",
            "SHOP_DATABASE": json.dumps(database),
            "SHOP_REDIS": redis.url,
        }
        run(environment, "-m", "django", "migrate", "--verbosity=0")
        yield environment


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=[] if name == "combined" else [pytest.mark.whole]) for name in STRATEGIES],
)
def test_it_sells_what_there_is(strategy: str, shop: dict[str, str]) -> None:
    """Two hundred buyers press the button of two worker processes at once: twenty orders, no copy left."""
    environment = {**shop, "SHOP_STRATEGY": strategy}
    book = run(environment, "-c", FILL % COPIES)
    together = threading.Barrier(40)

    def buy(number: int) -> int:
        if number < 40:
            together.wait(60)
        return press(f"{address}/buy/{book}/", number)

    with gunicorn(Path(sys.executable), ROOT, environment, 2, "--threads", "8") as address:
        with ThreadPoolExecutor(40) as crowd:
            answers = list(crowd.map(buy, range(BUYERS)))
        assert (answers.count(201), answers.count(409)) == (COPIES, BUYERS - COPIES)
        again = press(f"{address}/buy/{book}/", answers.index(201))
        assert again == 201  # a double click: the same order
        assert run(environment, "-c", SOLD % book) == str([COPIES, 0, COPIES])
