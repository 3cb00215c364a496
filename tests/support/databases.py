"""Where `default` leads to, for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections


@contextmanager
def default_leads_to(entry: dict[str, Any]) -> Iterator[None]:
    """Have every connection to `default` that is opened within the block be opened as `entry` says."""
    known = connections.settings["default"]
    before = dict(known)
    connections["default"].close()
    known.update(entry)
    try:
        yield
    finally:
        connections["default"].close()
        known.clear()
        known.update(before)


@contextmanager
def another_way(alias: str, entry: dict[str, Any]) -> Iterator[None]:
    """Have a further alias within the block."""
    connections.settings[alias] = entry
    try:
        yield
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]
