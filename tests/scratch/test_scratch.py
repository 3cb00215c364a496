"""A scratch project with the built wheel: what a reader who follows the README gets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.private_redis import PrivateRedis, private_redis
from tests.support.once import made_once
from tests.support.processes import until
from tests.support.scratch import gunicorn, parameters, scratch_database
from tests.wheels import install


class Scratch:
    """The project in its folder, with an environment, a database and a Redis of its own."""

    def __init__(
        self, folder: Path, environment: Path, redis: PrivateRedis, database: dict[str, Any]
    ) -> None:
        self.folder, self.redis, self.database = folder, redis, database
        self.python = environment / "bin" / "python"
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "PYTHON"))
        }
        self.environment |= {
            "DJANGO_SETTINGS_MODULE": "settings",
            "SCRATCH_DATABASE": json.dumps(database),
            "SCRATCH_REDIS": redis.url,
        }

    def run(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python."""
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def query(self, statement: str) -> list[tuple[int, ...]]:
        """Ask its database."""
        with psycopg.connect(**parameters(self.database), autocommit=True) as open_connection:
            cursor = open_connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def restock(self, pieces: int) -> None:
        """Begin with this many pieces, and none sold."""
        self.redis.client.flushall()
        self.query("TRUNCATE shop_product, shop_sale")
        self.query(f"INSERT INTO shop_product (on_hand) VALUES ({pieces})")  # noqa: S608 - a number of ours

    def totals(self) -> tuple[int, int]:
        """What is left, and how many were sold."""
        return (
            self.query("SELECT on_hand FROM shop_product")[0][0],
            self.query("SELECT count(*) FROM shop_sale")[0][0],
        )


@pytest.fixture(scope="module")
def scratch(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, django_db_setup: None
) -> Iterator[Scratch]:
    """The project with the wheel installed and its tables made."""
    folder = tmp_path_factory.mktemp("scratch")
    shutil.copytree(Path(__file__).parent / "project", folder, dirs_exist_ok=True)
    needs = (f"{wheel}[redis]", "gunicorn", "psycopg[binary]", "django-redis")
    environment = made_once(tmp_path_factory, "scratch-venv", lambda made: install(made, *needs))
    with scratch_database("scratch") as database, private_redis() as redis:
        made = Scratch(folder, environment, redis, database)
        migrated = made.run("-m", "django", "migrate", "--run-syncdb", "--verbosity", "0")
        assert migrated.returncode == 0, migrated.stderr
        yield made


@pytest.fixture(scope="module")
def address(scratch: Scratch) -> Iterator[str]:
    """The shop, served by gunicorn in four processes."""
    with gunicorn(scratch.python, scratch.folder, scratch.environment, 4) as where:
        yield where


def buy(address: str) -> int:
    """Buy one piece and return the status."""
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def two_buyers(scratch: Scratch, address: str, *, seconds: int) -> list[int]:
    """The first buyer has decided and lingers before its commit, at most so long; then comes the second."""
    scratch.redis.client.delete("lingering", "reads")
    with ThreadPoolExecutor(2) as buyers:
        first = buyers.submit(buy, f"{address}?linger={seconds}")
        until(lambda: first.done() or scratch.redis.client.exists("lingering"), "the first one lingers")
        second = buyers.submit(buy, address)
        return [first.result(), second.result()]


def test_a_lock_by_hand_oversells(scratch: Scratch, address: str) -> None:
    """Released before ATOMIC_REQUESTS commits, the lock lets the second buyer read what was there before."""
    scratch.restock(1)
    assert two_buyers(scratch, f"{address}/by-hand/", seconds=20) == [201, 201]
    assert scratch.totals() == (0, 2)


def test_the_decorated_view_does_not(scratch: Scratch, address: str) -> None:
    """In the same interleaving the second buyer gets in only after the commit."""
    scratch.restock(1)
    assert two_buyers(scratch, f"{address}/decorated/", seconds=1) == [201, 409]
    assert scratch.totals() == (0, 1)


def test_the_decorated_view_sells_exactly_its_stock(scratch: Scratch, address: str) -> None:
    """Sixty buyers at four processes: every piece is sold once, and no buyer gets one that isn't there."""
    scratch.restock(25)
    with ThreadPoolExecutor(12) as buyers:
        answers = Counter(buyers.map(buy, [f"{address}/decorated/"] * 60))
    assert answers == {201: 25, 409: 35}
    assert scratch.totals() == (0, 25)


def test_a_sound_project_passes_the_checks(scratch: Scratch) -> None:
    """`check --deploy` has nothing to say about locks."""
    done = scratch.run("-m", "django", "check", "--deploy")
    assert done.returncode == 0, done.stderr
    assert "locking." not in done.stdout + done.stderr


TRAPS = [
    "(locking.E001) LOCKING['misspelt'] has the unknown key 'TIMEOUT'",
    "(locking.E002) shop.traps.on_a_missing_alias is locked on 'nowhere'",
    "(locking.E003) LOCKING['endless']",
    "(locking.E004) The backend can't be made: LOCKING['cacheless']: ",
    "(locking.E005) shop.traps.on_a_missing_database commits on the database 'nowhere'",
    "(locking.E006) shop.traps.OnTheMethod.get is locked, but ATOMIC_REQUESTS",
    "(locking.E007) shop.traps.with_one_of_two_databases is locked, but ATOMIC_REQUESTS",
    "(locking.W001) LOCKING['lonely'] uses locking.backends.memory.MemoryBackend",
]  # fmt: skip


def test_a_misconfigured_project_is_shown_each_trap(scratch: Scratch) -> None:
    """`check --deploy` names every trap, with what is wrong, and every message comes with a hint."""
    done = scratch.run("-m", "django", "check", "--deploy", DJANGO_SETTINGS_MODULE="misconfigured")
    assert done.returncode == 1, done.stdout + done.stderr
    checked = done.stderr
    assert [message for message in TRAPS if message not in checked] == []
    reported = re.findall(r"\(locking\.\w+\) .*", checked)
    assert len(reported) == len(re.findall(r"\(locking\.\w+\) .*\n\s+HINT: ", checked)) >= 8
