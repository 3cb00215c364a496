"""The race in another project: SQLite, nothing of this package in INSTALLED_APPS, no other import of it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from tests import ROOT

SETTINGS = """
SECRET_KEY = "of a test"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"timeout": 20}, "TEST": %s}}
INSTALLED_APPS = ["shop"]
"""
MODELS = """
from django.db import models

class Book(models.Model):
    stock = models.IntegerField()
"""
TESTS = """
from django.db.models import F
from inventory.testing.pytest_plugin import oversell
from shop.models import Book

def by_hand(pk):
    book = Book.objects.get(pk=pk)
    if book.stock < 1:
        return False
    book.stock -= 1
    book.save()
    return True

def in_one_statement(pk):
    return Book.objects.filter(pk=pk, stock__gt=0).update(stock=F("stock") - 1)

def test_by_hand(oversell):
    book = Book.objects.create(stock=5)
    oversell(lambda: by_hand(book.pk), buyers=8, stock=5)

def test_in_one_statement(oversell):
    book = Book.objects.create(stock=5)
    oversell(lambda: in_one_statement(book.pk), buyers=8, stock=5)
"""
ALONE = """
import sys
import inventory.racing, inventory.racing.picture, inventory.testing.pytest_plugin
ours = {name for name in sys.modules if name.split(".")[0] in ("inventory", "locking", "orders")}
print(sorted(name for name in ours if not name.startswith(("inventory.racing", "inventory.testing"))))
"""


@pytest.mark.parametrize(
    ("test", "processes"), [({}, "1 process"), ({"NAME": "test.sqlite3"}, "2 processes")]
)
def test_a_shop_on_sqlite(tmp_path, test, processes):
    """In memory the race has one process, in a file two; both find what is wrong and pass what is right."""
    (tmp_path / "shop").mkdir()
    files = {"settings.py": SETTINGS % test, "shop/__init__.py": "", "shop/models.py": MODELS}
    for name, text in (files | {"test_shop.py": TESTS, "pytest.ini": "[pytest]\n"}).items():
        (tmp_path / name).write_text(text)
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "DJANGO_SETTINGS_MODULE": "settings"}
    command = [sys.executable, "-m", "pytest", "-c", "pytest.ini", "-p", "no:cacheprovider", "test_shop.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment | paths, capture_output=True, text=True, check=False
    )
    assert f"OVERSOLD by 3: 8 sold, 5 in stock (8 buyers in {processes})." in done.stdout, done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_it_imports_nothing_else_of_the_package():
    """The race needs no model, no setting, no other app: what the package itself imports is all."""
    public = {"inventory", "inventory.api", "inventory.conf", "inventory.exceptions", "inventory.lines"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    loaded = set(ast.literal_eval(done.stdout or "[]"))
    assert loaded == public, done.stderr
