"""`examples/oscar`: django-oscar's own checkout, raced over HTTP.

Runs where django-oscar and gunicorn are installed; OSCAR_PYTHON may name another environment's interpreter,
which needs redis, django-redis and psycopg besides.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.oscar.buyer import Buyer
from tests import ROOT
from tests.private_redis import private_redis
from tests.support.scratch import gunicorn, scratch_database

PYTHON = os.environ.get("OSCAR_PYTHON", sys.executable)
HERE = sys.executable != PYTHON or all(map(importlib.util.find_spec, ("oscar", "gunicorn")))

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HERE, reason="needs django-oscar: pip install django-oscar gunicorn"),
]

PIECES, BUYERS = 4, 12


class Shop:
    """A served shop with two products."""

    def __init__(self, address: str, environment: dict[str, str]) -> None:
        self.address, self.environment = address, environment

    def stock(self, *arguments: object) -> dict[str, list[int]]:
        """Ask `examples.oscar.stock`: on the shelf, allocated, in order lines; by product."""
        command = [PYTHON, "-m", "examples.oscar.stock", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
        return found


@contextmanager
def serving(**choices: str) -> Iterator[Shop]:
    """The shop, by gunicorn in two processes of eight threads."""
    with scratch_database("oscar") as database, private_redis() as redis:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
        environment |= {
            "DJANGO_SETTINGS_MODULE": "examples.oscar.settings",
            "SHOP_DATABASE": json.dumps(database),
            "SHOP_REDIS": redis.url,
            **choices,
        }
        shop = Shop("", environment)
        shop.stock(PIECES, 2)
        with gunicorn(Path(PYTHON), ROOT, environment, 2, "--threads", "8") as shop.address:
            yield shop


def race(shop: Shop) -> int:
    """Buyers who all press the last button at the same time; every second one wants both products."""
    products = [int(product) for product in shop.stock()]
    together = threading.Barrier(BUYERS)

    def press(buyer: Buyer) -> bool:
        together.wait(120)
        return buyer.place_the_order()

    crowd = [Buyer(shop.address, number) for number in range(BUYERS)]
    with ThreadPoolExecutor(4) as walking:
        list(walking.map(lambda buyer: buyer.go_to_the_last_button(*products[: 1 + buyer.number % 2]), crowd))
    with ThreadPoolExecutor(BUYERS) as pressing:
        return sum(pressing.map(press, crowd))


@pytest.mark.parametrize("files", ["checkout/views.py", "partner/models.py", "order/utils.py"])
def test_the_example_is_short(files: str) -> None:
    """The code that protects the checkout is at most 40 lines per file."""
    assert len((ROOT / "examples/oscar" / files).read_text().splitlines()) <= 40


def test_the_stock_record_on_the_inventory_sells_what_there_is(django_db_setup: None) -> None:
    """Every piece is sold once, and what is shipped or cancelled afterwards leaves or is for sale again."""
    with serving(SHOP="inventory") as shop:
        orders = race(shop)
        (first, second) = shop.stock().values()
        assert (orders, first) == (PIECES, [PIECES, PIECES, PIECES])
        assert second[0] == PIECES
        assert second[1] == second[2] <= PIECES
        (first, _) = shop.stock("after").values()
        assert first == [PIECES - 1, PIECES - 2, PIECES]
        buyer = Buyer(shop.address, BUYERS)
        buyer.go_to_the_last_button(int(next(iter(shop.stock()))))
        assert buyer.place_the_order()


def test_the_locked_checkout_sells_what_there_is(django_db_setup: None) -> None:
    """The same with a lock per product around Oscar's own checkout."""
    with serving(SHOP="lock") as shop:
        orders = race(shop)
        (first, second) = shop.stock().values()
        assert (orders, first) == (PIECES, [PIECES, PIECES, PIECES])
        assert second[1] == second[2] <= PIECES
