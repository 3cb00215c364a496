"""The tables that a run prints."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.checkout.growth import SIZES
from benchmarks.checkout.rounds import HOT, MANY, SOLD_OUT
from benchmarks.checkout.subjects import EMPTY, FOR_UPDATE
from benchmarks.figures import Table
from benchmarks.stats import Spread

COLOURS = {"reached": "green", "missed": "red", "not measured": "dim"}


def show(console: Console, results: dict[str, Any]) -> None:
    """Print everything that was measured."""
    facts = results["circumstances"]
    changes = " with uncommitted changes" if facts["dirty"] else ""
    console.print(
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_before'][0]:.1f}"
        f" · Python {facts['python']} · commit {facts['commit']}{changes}"
    )
    rounds = results.get("rounds", {"records": []})
    for shape in dict.fromkeys(record["shape"] for record in rounds["records"]):
        console.print(_speeds(rounds["records"], shape))
        console.print(_costs(rounds, shape))
    for axis in dict.fromkeys(record["axis"] for record in results.get("growth", [])):
        console.print(_growth([r for r in results["growth"] if r["axis"] == axis], axis))
    if "model" in results:
        show_model(console, results["model"])
    console.print(_targets(results["targets"]))
    for fault in results["faults"]:
        console.print(fault, style="red")


def _table(title: str, *columns: str) -> RichTable:
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _text(figure: Spread | None, form: str = "{:.2f}") -> str:
    return "–" if figure is None else form.format(figure.median)


def _ratio(ratio: Spread | None) -> str:
    return "–" if ratio is None else str(ratio)


def _speeds(records: list[dict[str, Any]], shape: str) -> RichTable:
    table = Table([record for record in records if record["shape"] == shape], "case")
    shown = _table(
        f"Answers through HTTP, {shape} (workers × threads), 32 buyers",
        "",
        "× select_for_update [quartiles]",
        "× empty view [quartiles]",
        "sold out × empty view",
        "one product /s",
        "100 products /s",
        "sold out /s",
        "p99 ms",
    )
    for peer in sorted(table.peers(), key=lambda peer: -_rate(table, peer)):
        rates = [
            _text(table.figure(peer, case, "answers_per_second"), "{:.0f}") for case in (HOT, MANY, SOLD_OUT)
        ]
        shown.add_row(
            peer,
            _ratio(table.ratio(peer, HOT, "answers_per_second", FOR_UPDATE)),
            _ratio(table.ratio(peer, HOT, "answers_per_second", EMPTY)),
            _text(table.ratio(peer, SOLD_OUT, "answers_per_second", EMPTY)),
            *rates,
            _text(table.figure(peer, HOT, "p99_ms"), "{:.0f}"),
        )
    return shown


def _rate(table: Table, peer: str) -> float:
    rate = table.figure(peer, HOT, "answers_per_second")
    return rate.median if rate else 0.0


def _costs(rounds: dict[str, Any], shape: str) -> RichTable:
    table = Table([record for record in rounds["records"] if record["shape"] == shape], "case")
    shown = _table(
        f"What a checkout of one product costs, {shape}",
        "",
        "SQL statements",
        "Redis requests",
        "web CPU µs",
        "PostgreSQL CPU µs",
        "Redis CPU µs",
        "client CPU µs",
    )
    for peer in sorted(table.peers(), key=lambda peer: -_rate(table, peer)):
        cpu = [f"{name}_cpu_us" for name in ("web", "postgres", "redis", "client")]
        shown.add_row(
            peer,
            f"{rounds['statements'].get(peer, 0):.1f}",
            _text(table.figure(peer, HOT, "redis_requests"), "{:.1f}"),
            *(_text(table.figure(peer, HOT, name), "{:.0f}") for name in cpu),
        )
    return shown


def _growth(records: list[dict[str, Any]], axis: str) -> RichTable:
    sizes = SIZES[axis]
    shown = _table(f"Answers per second by {axis}", "", *map(str, sizes))
    table = Table(records, "case")
    for peer in sorted(table.peers()):
        rates = (table.figure(peer, f"{size} {axis}", "answers_per_second") for size in sizes)
        shown.add_row(peer, *(_text(rate, "{:.0f}") for rate in rates))
    return shown


def show_model(console: Console, data: dict[str, Any]) -> None:
    """Print the fitted laws with their residuals, and what they predict."""
    laws = data["laws"] | ({"combined, per commit": data["commit"]} if data["commit"] else {})
    console.print(_laws(laws))
    if data["predictions"]:
        console.print(_predictions(data["predictions"]))
    for number, assumption in enumerate(data["assumptions"], 1):
        console.print(f"{number}. {assumption}", highlight=False)


def _laws(laws: dict[str, dict[str, Any]]) -> RichTable:
    shown = _table(
        "Fitted to the medians: Universal Scalability Law by buyers; c₀ + c₁n per commit",
        "", "fixed ms", "each ms", "pair µs", "λ /s", "σ", "κ", "limit /s", "residuals",
    )  # fmt: skip
    for name, law in laws.items():
        shown.add_row(
            name,
            f"{law['fixed'] * 1000:.2f}",
            f"{law['each'] * 1000:.3f}",
            f"{law['pair'] * 1e6:.3f}",
            f"{law['alone']:.0f}",
            f"{law['contention']:.3f}",
            f"{law['coherency']:.6f}",
            f"{law['limit']:.0f}" if law["limit"] else "–",
            " ".join(f"{residual:+.0%}" for residual in law["residuals"]),
        )
    return shown


def _predictions(rows: list[dict[str, Any]]) -> RichTable:
    sites = list(dict.fromkeys(row["site"] for row in rows))
    shown = _table(
        "A model, not measured: most orders per second, and the bottleneck", "", "products", *sites
    )
    for peer, products in dict.fromkeys((row["peer"], row["products"]) for row in rows):
        mine = {r["site"]: r for r in rows if (r["peer"], r["products"]) == (peer, products)}
        cells = (f"{r['orders_per_second']:,.0f} ({r['bottleneck']})" for r in mine.values())
        shown.add_row(peer, products, *cells)
    return shown


def _targets(targets: list[dict[str, Any]]) -> RichTable:
    shown = _table("Targets", "", "goal", "measured", "")
    for target in targets:
        bound = "≥" if target["at_least"] else "≤"
        measured = "–" if target["measured"] is None else f"{target['measured']:.2f}"
        verdict = target["verdict"]
        shown.add_row(
            target["text"], f"{bound} {target['wanted']:g}", measured, f"[{COLOURS[verdict]}]{verdict}[/]"
        )
    return shown
