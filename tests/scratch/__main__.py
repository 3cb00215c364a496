"""`python -m tests.scratch`: a new project with the wheel alone, on each row of versions that is installed.

For each row: a virtual environment in a temporary folder, the wheel and the packages from pip, and everything
that `tests.scratch.newcomer` shows, its ratio from three rounds. Ends with 1 if something wasn't protected.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import ROOT
from tests.private_redis import private_redis
from tests.scratch.newcomer import Newcomer, Shown, table
from tests.support.scratch import scratch_database

COMMON = (
    "djangorestframework",
    "django-ninja",
    "celery",
    "gunicorn",
    "uvicorn",
    "psycopg[binary]",
    "pytest-django",
)
ROWS = [  # Python, Django, redis-py
    ("3.12", "6.1.*", "6.4.*"),
    ("3.12", "6.1.*", "8.*"),
]
OTHERWISE = ("5.2.*", "8.*")
"""On the Python that runs this, where that of the rows is missing."""


def interpreter(version: str) -> str | None:
    """Return a Python of this version, pyenv's included."""
    folders = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin")
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return shutil.which(f"python{version}", path=path)


def rows() -> list[tuple[str, str, str]]:
    """The interpreter, Django and redis-py of each row."""
    found = [(interpreter(python), django_version, redis) for python, django_version, redis in ROWS]
    here = [(python, django_version, redis) for python, django_version, redis in found if python]
    return here or [(sys.executable, *OTHERWISE)]


def pip(python: Path, *requirements: str) -> None:
    """Install these."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([python, "-m", "pip", "install", *quiet, *requirements], check=True)


def show(folder: Path, wheel: Path, row: tuple[str, str, str]) -> list[Shown]:
    """Make the environment and the project, try everything, and print it."""
    base, django_version, redis_version = row
    subprocess.run([base, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    pip(python, f"{wheel}[redis]", f"Django=={django_version}", f"redis=={redis_version}", *COMMON)
    (folder / "project").mkdir()
    with scratch_database("newcomer") as database, private_redis() as redis:
        broker = f"redis+socket://{redis.path}?virtual_host=1"
        newcomer = Newcomer(folder / "project", python, database, redis.url, broker)
        newcomer.rounds = 3
        shown = list(newcomer.show())
    print(f"\n{newcomer.versions()}\n{table(shown)}", flush=True)
    return shown


def main() -> None:
    """Build the wheel, go through the rows."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    with tempfile.TemporaryDirectory(prefix="newcomer") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", name, str(ROOT)]
        subprocess.run(command, check=True, capture_output=True)
        (wheel,) = folder.glob("*.whl")
        shown = [each for number, row in enumerate(rows()) for each in show(_new(folder, number), wheel, row)]
    sys.exit(not all(each.good for each in shown))


def _new(folder: Path, number: int) -> Path:
    (made := folder / str(number)).mkdir()
    return made


if __name__ == "__main__":
    main()
