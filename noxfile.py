"""The versions that the wheel is tried on: `make matrix`, or one cell by `nox -s "cell(redis-7)"`.

Each cell installs the built wheel with the versions of one row, and runs `tests/matrix` there: the shipped
contract over Redis and memory, and whatever uses Django, Celery and the database driver. A row whose Python
isn't on this machine is skipped. What follows `--` is pytest's: `nox -- -k hammer` is a quick look.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import nox

from config import embedded

nox.options.default_venv_backend = "venv"
nox.options.envdir = "build/nox"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["cell"]

ROOT = Path(__file__).resolve().parent
STARTED = time.time()  # noqa: TID251 shown
PYTEST = ("pytest", "pytest-django", "pytest-asyncio", "pytest-timeout", "pytest-xdist")

PSYCOPG2, PSYCOPG3 = "psycopg2-binary==2.9.*", "psycopg[binary]==3.*"

# Python; Django, redis-py, django-redis, Celery; the driver, and hiredis where it is to be there
ROWS = {
    "oldest": ("3.11", "5.2.*", "5.2.1", "5.4.*", "5.4.*", PSYCOPG2),
    "redis-6": ("3.11", "5.2.*", "6.4.*", "6.0.*", "5.5.*", PSYCOPG3, "hiredis"),
    "redis-7": ("3.12", "6.0.*", "7.*", "6.0.*", "5.6.*", PSYCOPG3, "hiredis"),
    "django-6.1": ("3.12", "6.1.*", "6.4.*", "6.0.*", "5.6.*", PSYCOPG2),
    "newest": ("3.13", "6.1.*", "8.*", "7.*", "5.7.*", PSYCOPG3, "hiredis"),
    "pure": ("3.13", "5.2.*", "8.*", "7.*", "5.7.*", PSYCOPG2),
    "3.14": ("3.14", "6.1.*", "8.*", "7.*", "5.7.*", PSYCOPG3, "hiredis"),
}
VERSIONED = ("Django", "redis", "django-redis", "celery")

# pyenv's shims know only the versions that are switched on; the interpreters lie beside them.
for folder in Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin"):
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


@nox.session(reuse_venv=True)
@nox.parametrize("python,row", [nox.param(row[0], name, id=name) for name, row in ROWS.items()])
def cell(session: nox.Session, row: str) -> None:
    """Try the wheel on one row's versions."""
    _, *versions = ROWS[row]
    packages = [f"{name}=={version}" for name, version in zip(VERSIONED, versions, strict=False)]
    built = str(wheel(session))
    # pip refuses what the wheel doesn't allow
    session.install(*PYTEST, built, *packages, *versions[len(VERSIONED) :])
    # and passes over a wheel whose version a reused environment has already, whatever is in it
    session.install("--force-reinstall", "--no-deps", built)
    session.run("python", "-m", "pip", "check")
    services = {"MATRIX_DATABASE": json.dumps(embedded.database()), "MATRIX_REDIS": embedded.redis_url()}
    session.chdir(ROOT / "tests" / "matrix")
    session.run("python", "-m", "pytest", *session.posargs, env=services)


def wheel(session: nox.Session) -> Path:
    """Build the wheel, once."""
    built = sorted((ROOT / "build" / "matrix").glob("*.whl"))
    if not built or built[-1].stat().st_mtime < STARTED:
        command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "build/matrix")
        session.run(*command, external=True, silent=True)
        return wheel(session)
    return built[-1]
