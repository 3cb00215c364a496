"""A new project from the wheels alone: 200 buyers in four processes, by each strategy, one worker killed.

    python -m tests.scratch.bookstore [postgresql] [mariadb] [sqlite]

Builds both wheels, installs them into an empty environment, writes a project into an empty folder, and for
each database and strategy sells 20 books to 200 buyers. Exit status 1 where a run isn't exact.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.private_redis import private_redis

STRATEGIES = ("conditional_update", "write_first", "locked", "combined", "redis_gate")
DATABASES = ("postgresql", "mariadb", "sqlite")

SETTINGS = """
import json, os
SECRET_KEY = "scratch"
USE_TZ = True
INSTALLED_APPS = ["locking", "inventory", "books"]
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
REDIS = os.environ["SHOP_REDIS"]
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS}}
LOCKING = {"default": {"LOCATION": REDIS}}
INVENTORY = {"default": {"STRATEGY": os.environ.get("SHOP_STRATEGY", "conditional_update"), "WAIT": 60}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""

PYMYSQL = """
import pymysql
pymysql.version_info = (2, 2, 1, "final", 0)
pymysql.install_as_MySQLdb()
"""

MODELS = """
from django.db import models
from inventory.models import StockField

class Book(models.Model):
    title = models.CharField(max_length=200)
    stock = StockField()

class Order(models.Model):
    book = models.ForeignKey(Book, on_delete=models.PROTECT)
    buyer = models.CharField(max_length=40, unique=True)
"""

RACE = """
import json, os, signal, sys, threading, time
import django
django.setup()
from django.db import connections
from django.db.models import F, Sum
from inventory import Busy, SoldOut, stock
from inventory.models import Entry, Level, Movement, State
from books.models import Book, Order
import inventory
assert "site-packages" in inventory.__file__, inventory.__file__

BOOKS, PROCESSES, EACH = 20, 4, 50
book = Book.objects.create(title=os.environ["SHOP_STRATEGY"])
sku = book.stock.sku
stock.receive(sku, BOOKS, cause=f"delivery {sku}")

def buy(buyer):
    def place(lines):
        return Order.objects.create(book=book, buyer=f"{sku} {buyer}")

    for _ in range(20):
        try:
            return book.stock.sell(1, cause=f"{sku} {buyer}", write=place)
        except Busy as busy:
            time.sleep(busy.retry_after / 10)
        except SoldOut:
            return None

def worker(process):
    connections.close_all()
    def run(thread):
        for number in range(thread, EACH, 5):
            buy(f"{process}-{number}")
        connections.close_all()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(5)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    os._exit(0)

connections.close_all()
children = []
for process in range(PROCESSES):
    pid = os.fork()
    if pid == 0:
        try:
            worker(process)
        finally:
            os._exit(1)
    children.append(pid)
while Order.objects.filter(book=book).count() < 2:
    if os.waitpid(children[0], os.WNOHANG) != (0, 0):
        break
    time.sleep(0.001)
else:
    os.kill(children[0], signal.SIGKILL)
ended = [os.waitpid(pid, 0)[1] for pid in children[1:]]
assert ended == [0, 0, 0], ended
for late in range(BOOKS):  # what the killed worker's buyers have left is for sale
    buy(f"late-{late}")

orders = Order.objects.filter(book=book).count()
level = Level.objects.get(item__sku=sku)
sold = Movement.objects.filter(level=level, target=State.COMMITTED).aggregate(s=Sum("quantity"))["s"]
print(json.dumps({"orders": orders, "sold": sold, "left": level.available, "committed": level.committed,
                  "exact": (orders, sold, level.available, level.committed) == (BOOKS, BOOKS, 0, BOOKS)}))
"""


@contextmanager
def database(kind: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the settings of an empty database of this kind."""
    if kind == "sqlite":
        options = {"transaction_mode": "IMMEDIATE", "timeout": 60, "init_command": "PRAGMA journal_mode=WAL"}
        yield {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(folder / "books.sqlite3"),
            "OPTIONS": options,
        }
    elif kind == "mariadb":
        from tests.locking.support.mariadb import running_mariadb

        with running_mariadb() as socket:
            options = {"unix_socket": socket, "charset": "utf8mb4"}
            yield {
                "ENGINE": "django.db.backends.mysql",
                "NAME": "holdfast",
                "USER": "root",
                "OPTIONS": options,
            }
    else:
        from tests.support.scratch import scratch_database

        with scratch_database("bookstore") as found:
            yield found


def build(folder: Path) -> Path:
    """Build both wheels, install them into an empty environment, and return its Python."""
    subprocess.run(
        [sys.executable, "-m", "config.release", "--wheels", "--out", folder / "dist"], cwd=ROOT, check=True
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    locks = next((folder / "dist").glob("django_holdfast-[0-9]*.whl"))
    stock = next((folder / "dist").glob("django_holdfast_inventory-*.whl"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    drivers = ["psycopg[binary]", "pymysql", "cryptography"]
    constraint = ["--constraint", str(ROOT / "requirements.lock")]
    subprocess.run([*pip, *constraint, f"{locks}[redis]", str(stock), *drivers], check=True)
    return python


def project(folder: Path) -> Path:
    """Write the project's files."""
    (folder / "books" / "migrations").mkdir(parents=True)
    for name, text in (
        ("settings.py", SETTINGS),
        ("books/__init__.py", PYMYSQL),
        ("books/models.py", MODELS),
        ("books/migrations/__init__.py", ""),
        ("race.py", RACE),
    ):  # fmt: skip
        (folder / name).write_text(text)
    (folder / "settings.py").write_text("import books\n" + SETTINGS)
    return folder


def race(python: Path, shop: Path, environment: dict[str, str], kind: str, strategy: str) -> bool:
    """Race one strategy, print how it went, and return whether it was exact."""
    done = subprocess.run(
        [python, "race.py"],
        cwd=shop,
        env={**environment, "SHOP_STRATEGY": strategy},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    exact: bool = done.returncode == 0 and json.loads(done.stdout)["exact"]
    print(f"{kind:<11} {strategy:<19} {'exact' if exact else 'WRONG'} {done.stdout.strip()}")
    if not exact:
        print(done.stderr[-2000:])
    return exact


def main(kinds: list[str]) -> int:
    """Race every strategy on these databases; 1 where one isn't exact."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    wrong = 0
    with tempfile.TemporaryDirectory() as where, private_redis() as redis:
        folder = Path(where)
        python, shop = build(folder), project(folder / "shop")
        for kind in kinds:
            with database(kind, folder) as entry:
                environment = {
                    key: value
                    for key, value in os.environ.items()
                    if not key.startswith(("DJANGO", "PYTHON"))
                }
                environment |= {
                    "DJANGO_SETTINGS_MODULE": "settings",
                    "PYTHONPATH": ".",
                    "SHOP_DATABASE": json.dumps(entry, default=str),
                    "SHOP_REDIS": redis.url,
                }
                for command in (
                    ["makemigrations", "books", "--verbosity=0"],
                    ["migrate", "--verbosity=0"],
                    ["check"],
                ):
                    subprocess.run([python, "-m", "django", *command], cwd=shop, env=environment, check=True)
                wrong += sum(not race(python, shop, environment, kind, strategy) for strategy in STRATEGIES)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(DATABASES)))
