"""The race as a document: JSON for programs, one self-contained HTML page for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def summary(plan, results, started):
    return {"variants": [r.as_dict() for r in results]}


def write_report(*a):
    pass
