"""`async_reserve` on a PostgreSQL that is stopped in its tracks: no order is lost, no unit leaks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from config import embedded
from config.embedded.home import settled

pytestmark = [pytest.mark.timeout(240)]

RECEIVED = 100_000
ENOUGH = 80
"""Acknowledged orders after which the server is stopped, with eight buyers at work."""

TOTALS = """
SELECT on_hand, (SELECT coalesce(sum(quantity), 0) FROM inventory_stockclaim),
       (SELECT coalesce(sum(quantity), 0) FROM orders_orderitem),
       (SELECT coalesce(sum(quantity), 0) FROM inventory_stockmovement)
  FROM inventory_product
"""


class Idle(embedded.Postgres):
    """A server that writes nothing to the disk of its own accord: an asynchronous commit stays in memory."""

    settings = embedded.Postgres.settings | {"wal_writer_delay": "10s"}


class Shop:
    """A database of its own, and processes that work on it."""

    def __init__(self, folder: Path) -> None:
        self.postgres = Idle(settled(folder))
        host = quote(str(self.postgres.home.path), safe="")
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": f"postgres://{self.postgres.name}@{host}/{self.postgres.name}",
        }
        self.postgres.start()

    def manage(self, *arguments: str) -> None:
        """Run a command of manage.py."""
        subprocess.run(
            [sys.executable, "manage.py", *arguments], env=self.environment, check=True, timeout=60
        )

    def ask(self, question: str) -> list[tuple]:
        """Return the rows of a query."""
        with self.postgres.connect(self.postgres.name, autocommit=True) as connection:
            return connection.execute(question).fetchall()

    def buyers(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the buyers."""
        command = [sys.executable, "-m", "tests.inventory.crash_buyers", "mug", *arguments]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)

    def crash(self) -> None:
        """Stop without a last word, and recover from what is on the disk."""
        self.postgres.tool("pg_ctl", "stop", "-m", "immediate", "-D", self.postgres.data.name)
        self.postgres.start()


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """A shop with many mugs."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - the servers' account must enter
        try:
            made = Shop(Path(folder))
            made.manage("migrate", "-v0")
            code = f"from inventory.services import create_product as c; c('mug', on_hand={RECEIVED})"
            made.manage("shell", "-v0", "-c", code)
            yield made
        finally:
            embedded.remove(Path(folder))


def acknowledged_until_the_crash(shop: Shop, *arguments: str) -> set[str]:
    """Let the buyers buy, crash the server under them, and return every id that was acknowledged."""
    buyers = shop.buyers(*arguments)
    alarm = threading.Timer(120, buyers.kill)
    alarm.start()
    try:
        assert buyers.stdout is not None
        ids = [buyers.stdout.readline().strip() for _ in range(ENOUGH)]
        shop.crash()
        rest, _ = buyers.communicate(timeout=60)
    finally:
        alarm.cancel()
        buyers.kill()
    assert buyers.returncode == 0
    return {*ids, *rest.split()}


def test_no_acknowledged_order_is_lost_and_no_unit_leaks(shop):
    """After the crash each acknowledged order is there; stock, claims and orders add up; then reconcile."""
    acknowledged = acknowledged_until_the_crash(shop)
    kept = {str(row[0]) for row in shop.ask("SELECT id FROM orders_order")}
    assert acknowledged <= kept
    ((on_hand, claimed, sold, moved),) = shop.ask(TOTALS)
    assert on_hand + claimed + sold == RECEIVED
    assert on_hand + claimed == moved
    shop.manage("reconcile_stock", "--older-than", "0")
    assert shop.ask(TOTALS) == [(RECEIVED - sold, 0, sold, RECEIVED - sold)]


def test_an_order_that_does_not_wait_for_the_disk_is_lost(shop):
    """The same crash, with both commits asynchronous: acknowledged orders are gone, so the test can tell.

    The server writes its log every ten seconds, and where that was just before the crash, nothing is lost.
    """
    for _ in range(4):
        acknowledged = acknowledged_until_the_crash(shop, "asynchronous")
        if not acknowledged <= {str(row[0]) for row in shop.ask("SELECT id FROM orders_order")}:
            return
    pytest.fail("four crashes have lost no order")
