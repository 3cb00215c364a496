"""The web servers that the shop is measured under, by the command that starts each."""

from __future__ import annotations

import sys
from typing import Final

from config.serve import server
from config.server import HOST
from tests.load.shop import Command

APPLICATION: Final = "config.wsgi:application"


def gunicorn(port: int, workers: int, threads: int) -> list[str]:
    """Return the command of gunicorn with threads: what a Django project is mostly served by."""
    shape = ["--worker-class", "gthread", "--workers", str(workers), "--threads", str(threads)]
    return [sys.executable, "-m", "gunicorn", APPLICATION, "--bind", f"{HOST}:{port}", *shape]


COMMANDS: Final[dict[str, Command]] = {"granian": server, "gunicorn gthread": gunicorn}
