"""The plots of the docs, drawn from the records of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.checkout.rounds import HOT
from benchmarks.checkout.subjects import FOR_UPDATE, VIEWS
from benchmarks.figures import Table
from benchmarks.plots import OTHERS, OURS, _bars, _pyplot, _save

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
    mine = [record for record in records if record["axis"] == axis and "web_cpu_us" in record]
    for number, peer in enumerate(dict.fromkeys(record["peer"] for record in mine)):
        points = sorted((r for r in mine if r["peer"] == peer), key=lambda r: int(r["size"]))
        style = {"marker": "os^vD*"[number % 6], "linewidth": 1.2, "markersize": 4, "label": peer}
        sizes = [r["size"] for r in points]
        speed.plot(sizes, [r["answers_per_second"] for r in points], **style)
        cost.plot(
            sizes,
            [(r["web_cpu_us"] + r["postgres_cpu_us"] + r["redis_cpu_us"]) / 1000 for r in points],
            **style,
        )
    for plot, title in ((speed, "orders a second"), (cost, "processor ms an order, all servers")):
        plot.set_xscale("log", base=2 if axis == "segments" else 10)
        plot.set_xlabel(axis)
        plot.set_title(title, fontsize=9)
        plot.set_ylim(bottom=0)
        plot.spines[["top", "right"]].set_visible(False)
    cost.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _save(plt, figure, folder / f"checkout-{axis}.svg")
