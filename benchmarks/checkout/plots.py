"""The plots of the docs, drawn from the records of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.checkout.rounds import HOT
from benchmarks.checkout.subjects import FOR_UPDATE, VIEWS
from benchmarks.figures import Table
from benchmarks.plots import OTHERS, OURS, _bars, _pyplot, _save
from benchmarks.stats import Spread

VIEW_NAMES = frozenset(view.name for view in VIEWS)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write one SVG for each kind of measurement that `results` has, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plt = _pyplot()
    records = results.get("rounds", {}).get("records", [])
    drawn = [_speeds(plt, records, folder)] if records else []
    axes = dict.fromkeys(record["axis"] for record in results.get("growth", []))
    return drawn + [_growth(plt, results["growth"], axis, folder) for axis in axes]


def _speeds(plt: Any, records: list[dict[str, Any]], folder: Path) -> Path:
    shapes = list(dict.fromkeys(record["shape"] for record in records))
    figure, axes = plt.subplots(
        1, len(shapes), figsize=(6.5 * len(shapes), 6), sharey=True, layout="constrained", squeeze=False
    )
    for axis, shape in zip(axes[0], shapes, strict=True):
        table = Table([record for record in records if record["shape"] == shape], "case")
        ratios = {peer: table.ratio(peer, HOT, "answers_per_second", FOR_UPDATE) for peer in table.peers()}
        _bars(axis, ratios, f"one product, {shape}: orders a second, × select_for_update view")
        for bar, peer in zip(axis.patches, ratios, strict=True):
            bar.set_color(OTHERS if peer in VIEW_NAMES else OURS)
    return _save(plt, figure, folder / "checkout-speed.svg")


def _growth(plt: Any, records: list[dict[str, Any]], axis: str, folder: Path) -> Path:
    figure, (speed, cost) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    mine = [record | _cost(record) for record in records if record["axis"] == axis]
    table = Table(mine, "case")
    sizes = sorted({int(record["size"]) for record in mine})
    for number, peer in enumerate(sorted(table.peers())):  # measured in a random order
        style = {"marker": "os^vD*"[number % 6], "linewidth": 1.2, "markersize": 4, "label": peer}
        for plot, figures in ((speed, "answers_per_second"), (cost, "cpu_ms")):
            spreads = {size: table.figure(peer, f"{size} {axis}", figures) for size in sizes}
            _line(plot, {size: spread for size, spread in spreads.items() if spread}, style)
    for plot, title in ((speed, "orders a second"), (cost, "processor ms an order, all servers")):
        plot.set_xscale("log", base=10 if axis in ("buyers", "products") else 2)
        plot.set_xticks(sizes, [str(size) for size in sizes])
        plot.minorticks_off()
        plot.set_xlabel(axis)
        plot.set_title(title, fontsize=9)
        plot.set_ylim(bottom=0)
        plot.spines[["top", "right"]].set_visible(False)
    cost.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _save(plt, figure, folder / f"checkout-{axis.replace(', ', '-').replace(' ', '-')}.svg")


def _cost(record: dict[str, Any]) -> dict[str, float]:
    parts = [record.get(f"{server}_cpu_us") for server in ("web", "postgres", "redis")]
    return {} if None in parts else {"cpu_ms": sum(part for part in parts if part) / 1000}


def _line(plot: Any, spreads: dict[int, Spread], style: dict[str, Any]) -> None:
    """Draw the medians, and the quartiles around them."""
    (drawn,) = plot.plot(list(spreads), [spread.median for spread in spreads.values()], **style)
    low, high = ([spread[end] for spread in spreads.values()] for end in (0, 2))
    plot.fill_between(list(spreads), low, high, color=drawn.get_color(), alpha=0.12, linewidth=0)
