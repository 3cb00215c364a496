"""Database servers of one test's own, which it may freeze."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pymysql
import pytest

from config import embedded
from tests.locking.support.mariadb import MISSING, programs, running_mariadb
from tests.support.processes import await_standstill

MYSQL: Final = {
    "ENGINE": "django.db.backends.mysql",
    "PORT": "",
    "USER": "root",
    "PASSWORD": "",
    "OPTIONS": {},
}


class PrivateDatabase:
    """A running server.

    Args:
        entry: what DATABASES would have for it.
        process: returns its process, the parent of all others.
    """

    def __init__(self, entry: dict[str, Any], process: Callable[[], psutil.Process]) -> None:
        self.entry, self._process = entry, process

    def _all(self) -> list[psutil.Process]:
        """Return the parent first: while it is stopped there are no further children."""
        parent = self._process()
        return [parent, *parent.children(recursive=True)]

    def pause(self) -> None:
        """Freeze the server; its sockets stay open."""
        self._process().suspend()
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                process.suspend()
                await_standstill(process.pid)

    def resume(self) -> None:
        """Let it go on; does nothing where it runs."""
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def private_postgresql() -> Iterator[PrivateDatabase]:
    """A PostgreSQL for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="holdfast-postgresql-") as folder:
        _, redis = embedded.servers(Path(folder))
        postgres = embedded.Postgres(redis.home)
        try:
            postgres.start()
            entry = {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": str(postgres.home.path),
                "NAME": postgres.name,
                "USER": postgres.name,
                "PASSWORD": "",
                "PORT": "5432",
                "OPTIONS": {},
            }
            yield PrivateDatabase(entry, lambda: _running(postgres))
        finally:
            embedded.remove(Path(folder))


def _running(postgres: embedded.Postgres) -> psutil.Process:
    process = postgres.process()
    assert process is not None
    return process


@contextmanager
def private_mariadb() -> Iterator[PrivateDatabase]:
    """A MariaDB for the length of the block."""
    if programs() is None:
        pytest.skip(MISSING)
    pymysql.install_as_MySQLdb()
    with running_mariadb() as socket:
        pid = int(Path(socket).with_name("pid").read_text())
        yield PrivateDatabase({**MYSQL, "NAME": "holdfast", "HOST": socket}, lambda: psutil.Process(pid))
