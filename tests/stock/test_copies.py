"""Balances are the same after dumpdata and loaddata, pg_dump and restore; loading twice adds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections

from config import embedded
from inventory import Stock
from inventory.models import Entry, Movement
from tests.stock.test_verbs import balances

FILLED = (6, 1, 2, 1)


def fill(stock: Stock) -> None:
    """Have units in every state, and an answer in the ledger."""
    stock.receive({"mug": 10, "pen": 1}, cause="po-1")
    stock.sell({"mug": 2}, cause="o-1")
    stock.sell({"pen": 1}, cause="o-2", write=lambda lines: {"order": 7})
    stock.reserve({"mug": 1}, seconds=900)
    stock.hold_back({"mug": 1}, cause="h-1")
    stock.bundle("set", {"mug": 2})


def test_dumpdata_and_loaddata_bring_the_same_balances_once(committing: str, tmp_path: Path) -> None:
    stock = Stock(database=committing)
    fill(stock)
    dump = str(tmp_path / "dump.json")
    call_command("dumpdata", "inventory", database=committing, output=dump)
    for _ in range(2):
        call_command("flush", interactive=False, database=committing, verbosity=0)
        for _ in range(2):
            call_command("loaddata", dump, database=committing, verbosity=0)
            assert balances(stock) == FILLED
            assert Movement.objects.using(committing).count() == 6
    assert stock.sell({"pen": 1}, cause="o-2", write=lambda lines: 1 / 0) == {"order": 7}
    stock.sell({"set": 1}, cause="o-3")
    assert balances(stock) == (4, 1, 4, 1)


@pytest.fixture
def copy(transactional_db: None) -> Iterator[str]:
    """The name of an empty database beside the test's."""
    name = connections["default"].settings_dict["NAME"] + "_copy"
    with psycopg.connect(**_server(), dbname="postgres", autocommit=True) as server:
        server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        server.execute(f'CREATE DATABASE "{name}"')
        yield name
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _server() -> dict[str, Any]:
    found = connections["default"].settings_dict
    return {key.lower(): found[key] for key in ("USER", "HOST", "PORT", "PASSWORD") if found.get(key)}


def _run(program: str, *args: str) -> None:
    """Run a program of the server's own version."""
    postgres = embedded.servers()[0]
    assert isinstance(postgres, embedded.Postgres)
    server = _server()
    done = postgres.tool(program, "--host", server["host"], "--username", server["user"], *args)
    assert not done.returncode, done.stdout + done.stderr


@pytest.fixture
def dump() -> Iterator[str]:
    """A file that the server's account may write."""
    path = embedded.servers()[0].home.path / f"dump-{uuid4().hex}"
    yield str(path)
    path.unlink(missing_ok=True)


def _balances_in(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(**_server(), dbname=database) as connection:
        return connection.execute(
            "SELECT available, reserved, committed, unavailable "
            "FROM inventory_level JOIN inventory_item item ON item.id = item_id WHERE sku = 'mug'"
        ).fetchall()


@pytest.mark.django_db(databases=["default"], transaction=True)
def test_a_restored_dump_has_the_same_balances(copy: str, dump: str) -> None:
    fill(Stock())
    _run(
        "pg_dump", "--format=custom", "--file", dump, "--dbname", connections["default"].settings_dict["NAME"]
    )
    _run("pg_restore", "--dbname", copy, dump)
    assert _balances_in(copy) == [FILLED]
    with psycopg.connect(**_server(), dbname=copy) as connection, pytest.raises(psycopg.IntegrityError):
        connection.execute("UPDATE inventory_level SET available = 99")


@pytest.mark.django_db(databases=["default"], transaction=True)
def test_restored_data_alone_has_the_same_balances(copy: str, dump: str) -> None:
    fill(Stock())
    name = connections["default"].settings_dict["NAME"]
    for part in ("--schema-only", "--data-only"):
        _run("pg_dump", "--format=custom", part, "--file", dump, "--dbname", name)
        _run("pg_restore", "--dbname", copy, dump)
    assert _balances_in(copy) == [FILLED]


def test_a_dump_that_is_older_than_the_ledger_is_refused(committing: str, tmp_path: Path) -> None:
    from django.db import IntegrityError

    stock = Stock(database=committing)
    fill(stock)
    dump = str(tmp_path / "dump.json")
    call_command("dumpdata", "inventory", database=committing, output=dump)
    stock.sell({"mug": 1}, cause="o-9")
    with pytest.raises(IntegrityError):
        call_command("loaddata", dump, database=committing, verbosity=0)
    assert balances(stock) == (5, 1, 3, 1)
    assert Entry.objects.using(committing).filter(cause="o-9").exists()
