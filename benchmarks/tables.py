"""The tables that a run prints."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table as RichTable

from benchmarks.contended import SHAPES
from benchmarks.crashes import TRIALS
from benchmarks.figures import Table
from benchmarks.peers import BATON, FLOOR
from benchmarks.stats import Spread
from benchmarks.targets import Target
from benchmarks.uncontended import NEW_KEY, SAME_KEY, Record

COLOURS = {"reached": "green", "missed": "red", "not measured": "dim"}


def show(console: Console, results: dict[str, Any], targets: Sequence[Target]) -> None:
    """Print everything that was measured."""
    console.print(_circumstances(results["circumstances"]))
    for name, title in (("uncontended", "Uncontended acquire + release"), ("asyncio", "The same in asyncio")):
        if name in results:
            console.print(_uncontended(results[name], title))
    if "calls" in results:
        listed = ", ".join(f"{peer} {number:.0f}" for peer, number in results["calls"].items())
        console.print(f"Python calls per uncontended acquire and release: {listed}")
    for shape in SHAPES if "contended" in results else ():
        console.print(_contended(results["contended"], shape))
    if "crashes" in results:
        console.print(_crashes(results["crashes"]))
    if "renewal" in results:
        console.print(_renewal(results["renewal"]))
    for name, reason in results["missing"].items():
        console.print(f"not measured: {name} ({reason})", style="dim")
    console.print(_targets(targets))


def _table(title: str, *columns: str) -> RichTable:
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _circumstances(facts: dict[str, Any]) -> str:
    changes = " with uncommitted changes" if facts["dirty"] else ""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_before'][0]:.1f}"
        f" · Python {facts['python']}"
        f" · Redis {facts['redis_server']} ({facts['transport']}) · replies read by {facts['reply_parser']}"
        f" · commit {facts['commit']}{changes}"
    )


def _text(spread: Spread | None, form: str = "{:.2f}") -> str:
    return "–" if spread is None else form.format(spread.median)


def _ratio(spread: Spread | None) -> str:
    return "–" if spread is None else str(spread)


def _uncontended(records: Sequence[Record], title: str) -> RichTable:
    table = Table(records, "key")
    shown = _table(
        title,
        "",
        "new key × floor [quartiles]",
        "same key × floor [quartiles]",
        "µs a pair",
        "client CPU µs",
        "Redis CPU µs",
        "requests",
        "Redis commands",
    )
    for peer in _ordered(table, NEW_KEY, FLOOR):
        ratios = [
            table.ratio(peer, kind, "wall_us", FLOOR, more_is_better=False) for kind in (NEW_KEY, SAME_KEY)
        ]
        costs = [table.figure(peer, NEW_KEY, name) for name in ("wall_us", "client_cpu_us", "redis_cpu_us")]
        counts = [table.figure(peer, NEW_KEY, name) for name in ("requests", "commands")]
        shown.add_row(
            peer,
            *map(_ratio, ratios),
            *(_text(cost, "{:.0f}") for cost in costs),
            *(_text(count, "{:.1f}") for count in counts),
        )
    return shown


def _ordered(table: Table, case: str, base: str) -> list[str]:
    """Return the peers, slowest first, so that the best is next to what follows."""

    def speed(peer: str) -> float:
        ratio = table.ratio(peer, case, "wall_us", base, more_is_better=False)
        return 0.0 if ratio is None else ratio.median

    return sorted(table.peers(), key=speed, reverse=True)


def _contended(records: Sequence[Record], shape: str) -> RichTable:
    table = Table(records, "shape")
    shown = _table(
        f"Contended, {shape} (processes × threads), 1 ms section",
        "",
        "× baton [quartiles]",
        "× floor [quartiles]",
        "sections/s",
        "Jain",
        "longest wait ms",
        "requests per section",
        "Redis CPU µs",
        "overlaps",
        "errors",
    )
    for peer in sorted(table.peers(), key=lambda name: -_rate(table, name, shape)):
        shown.add_row(
            peer,
            _ratio(table.ratio(peer, shape, "sections_per_second", BATON)),
            _ratio(table.ratio(peer, shape, "sections_per_second", FLOOR)),
            _text(table.figure(peer, shape, "sections_per_second"), "{:.0f}"),
            _text(table.figure(peer, shape, "jain")),
            _text(table.figure(peer, shape, "longest_wait_ms"), "{:.0f}"),
            _text(table.figure(peer, shape, "requests"), "{:.1f}"),
            _text(table.figure(peer, shape, "redis_cpu_us"), "{:.0f}"),
            f"{table.total(peer, shape, 'overlaps'):.0f}",
            f"{table.total(peer, shape, 'errors') + table.total(peer, shape, 'stuck'):.0f}",
        )
    return shown


def _rate(table: Table, peer: str, shape: str) -> float:
    rate = table.figure(peer, shape, "sections_per_second")
    return 0.0 if rate is None else rate.median


def _crashes(records: Sequence[Record]) -> RichTable:
    table = Table(records, "kind")
    shown = _table(
        "Who dies, and how long the next one waits for it (lease 3 s)",
        "",
        *(f"{kind}, ms: median (worst)" for kind in TRIALS),
    )
    for peer in table.peers():
        shown.add_row(peer, *(_delay(table.values(peer, kind, "delay_ms")) for kind in TRIALS))
    return shown


def _delay(delays: list[float]) -> str:
    if not delays or min(delays) < 0:
        return "never" if delays else "–"
    return f"{median(delays):.1f} ({max(delays):.1f})"


def _renewal(figures: Record) -> str:
    return (
        f"{figures['leases']} leases held for {figures['seconds']:.0f} s:"
        f" {figures['cpu_percent']:.2f} % of a core in the client (by {figures['threads']} thread;"
        f" beside it {figures['others'] or 'none'}),"
        f" {figures['redis_cpu_percent']:.2f} % in Redis, {figures['requests_per_second']:.1f} requests/s,"
        f" {figures['lost']} lost, at least {figures['shortest_left_s']:.1f} s left of 10 s\n"
    )


def _targets(targets: Sequence[Target]) -> RenderableType:
    shown = _table("Targets", "", "wanted", "measured", "")
    for target in targets:
        bound = "≥" if target.at_least else "≤"
        measured = "–" if target.measured is None else f"{target.measured:.2f}"
        verdict = f"[{COLOURS[target.verdict]}]{target.verdict}[/]"
        shown.add_row(target.text, f"{bound} {target.wanted:g}", measured, verdict)
    return shown
