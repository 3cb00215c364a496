"""The race as a document: figures for programs, and one self-contained HTML page for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django
from django.contrib.staticfiles import finders
from django.db import connection
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from orders.lab.race.audit import Sample
from orders.lab.race.explain import explain, headings
from orders.lab.race.plan import Plan
from orders.lab.race.result import Result
from orders.lab.strategies import STRATEGIES

_STYLES = ("lab/vendor/uplot/uPlot.min.css", "lab/report.css")
_SCRIPTS = ("lab/vendor/uplot/uPlot.iife.min.js", "lab/report.js")
_BEFORE, _AFTER = 2, 4


def summary(
    plan: Plan, results: Sequence[Result], started: datetime, absent: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything that was measured, ready for JSON.

    Example:
        >>> summary(plan, results, started)["variants"][0]["unaccounted"]  # doctest: +SKIP
        0
    """
    return {
        "started": started.isoformat(timespec="seconds"),
        "parameters": {
            "buyers": plan.buyers,
            "stock": plan.stock,
            "gap_ms": plan.gap * 1000,
            "processes": plan.processes,
        },
        "machine": _machine(),
        "kept": all(result.kept for result in results),
        "variants": [_figures(result) for result in results],
        "absent": dict(absent or {}),
    }


def write_report(path: Path, document: dict[str, Any], results: Sequence[Result]) -> None:
    """Write the page: table, plots and explanations in one file that needs no network."""
    stock = {result.name: stock_over_time(result.initial, result.samples) for result in results}
    context = {
        "document": document,
        "styles": _inlined(_STYLES),
        "scripts": _inlined(_SCRIPTS),
        "data": {"variants": document["variants"], "stock": stock},
        "broken": [figures for figures in document["variants"] if not figures["sound"]],
        "sound": [figures for figures in document["variants"] if figures["sound"]],
    }
    path.write_text(render_to_string("lab/report.html", context), encoding="utf-8")


def stock_over_time(initial: int, samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Turn the samples of one race into the lines of its plot.

    Example:
        >>> stock_over_time(2, [Sample(5.0, left=2, sold=0), Sample(5.01, left=1, sold=2)])
        {'ms': [0.0, 10.0], 'page': [2, 1], 'truth': [2, 0]}
    """
    moves = [i for i in range(1, len(samples)) if _facts(samples[i]) != _facts(samples[i - 1])]
    shown = samples[max(0, moves[0] - _BEFORE) : moves[-1] + _AFTER] if moves else samples[:1]
    return {
        "ms": [round((sample.at - shown[0].at) * 1000, 1) for sample in shown],
        "page": [sample.left for sample in shown],
        "truth": [initial - sample.sold for sample in shown],
    }


def _facts(sample: Sample) -> tuple[int, int]:
    return sample.left, sample.sold


def _figures(result: Result) -> dict[str, Any]:
    strategy = STRATEGIES[result.strategy]
    return result.as_dict() | {
        "explanation": explain(result, strategy),
        "interleaving": headings(strategy).get("Interleaving", ""),
    }


def _machine() -> dict[str, Any]:
    connection.ensure_connection()
    return {
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "django": django.get_version(),
        "postgresql": ".".join(map(str, connection.get_database_version())),
    }


def _inlined(names: Sequence[str]) -> SafeString:
    """Return the text of our own static files, which contains no input."""
    return mark_safe("\n".join(_text(name) for name in names))  # noqa: S308


def _text(name: str) -> str:
    found = finders.find(name)
    if not isinstance(found, str):
        raise FileNotFoundError(f"static file {name} is missing: the checkout is incomplete")
    return Path(found).read_text(encoding="utf-8")


def now() -> datetime:
    """Return the present time, with its time zone."""
    return datetime.now(UTC)  # noqa: TID251 shown
