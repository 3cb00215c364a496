"""The load test's figures for people: a table on the terminal, and one HTML page that needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tests import ROOT

FAULTY = ("oversold", "undersold", "lost", "duplicated", "leaked")
COLUMNS = {
    "sold": "sold",
    "refused": "refused",
    "busy": "busy",
    "unknown": "unknown",
    "definite_percent": "definite %",
    "orders_per_second": "orders/s",
    "p50_ms": "p50 ms",
    "p95_ms": "p95 ms",
    "p99_ms": "p99 ms",
    "slowest_ms": "slowest ms",
}
_STATIC = ROOT / "orders" / "lab" / "static" / "lab"
_STYLES = (
    _STATIC / "vendor/uplot/uPlot.min.css",
    _STATIC / "report.css",
    Path(__file__).with_name("report.css"),
)
_SCRIPTS = (_STATIC / "vendor/uplot/uPlot.iife.min.js", Path(__file__).with_name("report.js"))


def show(console: Console, results: dict[str, Any]) -> None:
    """Print a line for each strategy, and whatever is wrong."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("strategy")
    for title in ("verdict", *FAULTY, *COLUMNS.values(), "by locust"):
        table.add_column(title, justify="right")
    for run in results["runs"]:
        table.add_row(run["name"], *_cells(run))
    console.print(table)
    for run in results["runs"]:
        for detail in run["verdict"]["details"]:
            console.print(f"{run['name']}: {detail}", style="red", markup=False)
    for run in results["lessons"]:
        exact = "[red]WRONG[/]" if run["details"] else "exact"
        counts = f"{run['sold']} sold, {run['refused']} refused, {run['seconds']:.1f} s"
        console.print(f"lesson {run['name']}: {exact}, {counts}")
        for detail in run["details"]:
            console.print(f"{run['name']}: {detail}", style="red", markup=False)
    if results["audit_orders"].get("exit"):
        console.print(f"audit_orders: {results['audit_orders']['said']}", style="red", markup=False)
    console.print(f"{_conclusion(results)} {results['minutes']} minutes.")


def _cells(run: dict[str, Any]) -> Iterable[str]:
    yield "[green]exact[/]" if run["verdict"]["exact"] else "[red]WRONG[/]"
    yield from (str(run["verdict"][name]) for name in FAULTY)
    yield from (f"{run[name]:g}" for name in COLUMNS)
    yield str(run["locust"]["requests"]) if run["locust"] else "–"


def _conclusion(results: dict[str, Any]) -> str:
    if results["exact"]:
        return "Every strategy was exact."
    return "NOT every strategy was exact."


def write(path: Path, results: dict[str, Any]) -> None:
    """Write the page: table, plots over time with the faults, and what grows with what."""
    page = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    facts, parameters = results["circumstances"], results["parameters"]
    values = {
        "styles": _inlined(_STYLES),
        "scripts": _inlined(_SCRIPTS),
        "verdict": _conclusion(results),
        "mood": "good" if results["exact"] else "bad",
        "parameters": f"{parameters['rate']:g} buyers per second for {parameters['seconds']:g} s",
        "titles": "".join(f'<th class="n">{title}' for title in (*FAULTY, *COLUMNS.values(), "locust")),
        "rows": "\n".join(map(_row, results["runs"])),
        "articles": "\n".join(map(_article, results["runs"])),
        "circumstances": html.escape(_circumstances(facts)),
        "data": _as_script({"runs": results["runs"], "growth": results["growth"]}),
    }
    path.write_text(page.substitute(values), encoding="utf-8")


def _circumstances(facts: dict[str, Any]) -> str:
    changes = " with changes" if facts["dirty"] else ""
    return (
        f"{facts['taken_at']} · {facts['cpu']}, {facts['cores']} cores, load {facts['load_before'][0]:.1f}"
        f" · Python {facts['python']} · commit {facts['commit']}{changes}"
    )


def _row(run: dict[str, Any]) -> str:
    mood = '<td class="good">✓ exact' if run["verdict"]["exact"] else '<td class="bad">✗ wrong'
    cells = "".join(f'<td class="n">{cell}' for cell in list(_cells(run))[1:])
    return f'<tr><th scope="row">{html.escape(run["name"])}{mood}{cells}</tr>'


def _article(run: dict[str, Any]) -> str:
    name = html.escape(run["name"])
    struck = "; ".join(map(_said, run["faults"])) or "no faults"
    wrong = "".join(f'<p class="bad">{html.escape(detail)}</p>' for detail in run["verdict"]["details"])
    keyed = "asked again with its key" if run["keyed"] else "not asked again: the shop knows no keys"
    plots = "".join(
        f'<div class="plot {kind}" data-name="{name}" role="img" aria-label="{label}, {name}"></div>'
        for kind, label in (("rate", "Answers per second"), ("wait", "Latency in ms"))
    )
    note = (
        f"{struck}. {run['acknowledged']} orders acknowledged, {run['orders']} in the database,"
        f" {run['unknown']} never answered; a buyer without an answer {keyed}."
    )
    return f'<article><h3>{name}</h3>{plots}<p class="note">{html.escape(note)}</p>{wrong}</article>'


def _said(fault: dict[str, Any]) -> str:
    down = fault["until"] - fault["at"]
    back = f", back after {down:.1f} s" if down >= 0.1 else ""
    return f"{fault['at']:.1f} s {fault['text']}{back}"


def _inlined(paths: Iterable[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _as_script(data: object) -> str:
    # "</script>" inside a string would end the element.
    return json.dumps(data).replace("<", "\\u003c")
