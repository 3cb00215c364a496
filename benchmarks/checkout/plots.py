"""The plot of the strategies, drawn from one run's records; `docs/growth_plots.py` draws how they grow."""

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
    records = results.get("rounds", {}).get("records", [])
    return [_speeds(_pyplot(), records, folder)] if records else []


def _speeds(plt: Any, records: list[dict[str, Any]], folder: Path) -> Path:
    shapes = list(dict.fromkeys(record["shape"] for record in records))
    figure, axes = plt.subplots(
        1, len(shapes), figsize=(6.5 * len(shapes), 6), sharey=True, layout="constrained", squeeze=False
    )
    for axis, shape in zip(axes[0], shapes, strict=True):
        table = Table([record for record in records if record["shape"] == shape], "case")
        ratios = {peer: table.ratio(peer, HOT, "answers_per_second", FOR_UPDATE) for peer in table.peers()}
        _bars(axis, ratios, f"one product, {shape}: orders per second, × select_for_update view")
        for bar, peer in zip(axis.patches, ratios, strict=True):
            bar.set_color(OTHERS if peer in VIEW_NAMES else OURS)
    return _save(plt, figure, folder / "checkout-speed.svg")
