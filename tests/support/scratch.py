"""What a project outside of this one needs: a database of its own, and a server that serves it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from psycopg import sql

from orders.lab.race.process_guard import guarded
from tests.support.processes import free_ports, until

KEPT = ("NAME", "USER", "PASSWORD", "HOST", "PORT")
OF_PSYCOPG = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}


def parameters(database: Mapping[str, Any]) -> dict[str, Any]:
    """How psycopg calls what Django's settings say."""
    return {OF_PSYCOPG[name]: value for name, value in database.items() if name in OF_PSYCOPG and value}


@contextmanager
def scratch_database(purpose: str) -> Iterator[dict[str, Any]]:
    """Yield the settings of a new database on the tests' PostgreSQL; it is dropped in the end."""
    server = {name: settings.DATABASES["default"].get(name, "") for name in KEPT}
    server["ENGINE"] = "django.db.backends.postgresql"  # the project that uses it hasn't this one's
    database = server | {"NAME": f"{purpose}_{os.getpid()}"}
    _administer(server, "DROP DATABASE IF EXISTS {} WITH (FORCE)", database["NAME"])
    _administer(server, "CREATE DATABASE {}", database["NAME"])
    try:
        yield database
    finally:
        _administer(server, "DROP DATABASE {} WITH (FORCE)", database["NAME"])


def _administer(server: Mapping[str, Any], statement: str, database: str) -> None:
    with psycopg.connect(**parameters({**server, "NAME": "postgres"}), autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(database)))


@contextmanager
def launched(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], sign: str, times: int
) -> Iterator[None]:
    """Run a server for the length of the block, which begins when its log shows `sign` so many times.

    The log is a file: a pipe without a reader would stop the server when it is full.
    """
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        with guarded(process):
            try:
                until(lambda: _shows(process, Path(log.name), sign, times), f"{sign!r}", within=90)
                yield
            finally:
                process.terminate()
                process.wait(30)


def _shows(process: subprocess.Popen[bytes], log: Path, sign: str, times: int) -> bool:
    text = log.read_text()
    assert process.poll() is None, text
    return text.count(sign) >= times


@contextmanager
def gunicorn(
    python: Path, folder: Path, environment: Mapping[str, str], workers: int, *options: str
) -> Iterator[str]:
    """Yield the address of a Django project, served by gunicorn, once all its workers have started."""
    where = f"127.0.0.1:{free_ports(1)[0]}"
    command = [str(python), "-m", "gunicorn", "--workers", str(workers), "--bind", where, *options]
    application = "django.core.wsgi:get_wsgi_application()"
    with launched([*command, application], folder, environment, "Booting worker", workers):
        yield f"http://{where}"


@contextmanager
def uvicorn(python: Path, folder: Path, environment: Mapping[str, str], workers: int) -> Iterator[str]:
    """Yield the address of a Django project, served by uvicorn, once all its workers have started."""
    (port,) = free_ports(1)
    command = [str(python), "-m", "uvicorn", "--factory", "django.core.asgi:get_asgi_application"]
    options = ["--workers", str(workers), "--port", str(port)]
    with launched([*command, *options], folder, environment, "startup complete", workers):
        yield f"http://127.0.0.1:{port}"
