"""Where the tables are printed."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDTH = 150
"""Columns of a file or a pipe, which names none: as many as the widest table needs."""


def open_console() -> Console:
    """Return a console as wide as the terminal; where there is none, wide enough for every table."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=WIDTH)
