"""The plots of the docs, drawn from the records of one run."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.contended import SHAPES
from benchmarks.figures import Table
from benchmarks.peers import BATON, FLOOR
from benchmarks.stats import Spread
from benchmarks.uncontended import NEW_KEY, SAME_KEY

OURS, OTHERS, BOUND = "#c2410c", "#475569", "#94a3b8"


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write one SVG for each kind of measurement that `results` has, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plt = _pyplot()
    drawn = []
    if "uncontended" in results:
        drawn.append(_uncontended(plt, Table(results["uncontended"], "key"), folder))
    if "contended" in results:
        drawn += _contended(plt, Table(results["contended"], "shape"), folder)
    return drawn


def _pyplot() -> Any:
    import_module("matplotlib").use("svg")
    plt: Any = import_module("matplotlib.pyplot")
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "holdfast", "font.size": 9})
    return plt


def _uncontended(plt: Any, table: Table, folder: Path) -> Path:
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), sharey=True, layout="constrained")
    for axis, kind in zip(axes, (NEW_KEY, SAME_KEY), strict=True):
        ratios = {
            peer: table.ratio(peer, kind, "wall_us", FLOOR, more_is_better=False) for peer in table.peers()
        }
        _bars(axis, ratios, f"uncontended, {kind}: pairs per second, × floor")
    return _save(plt, figure, folder / "locks-uncontended.svg")


def _contended(plt: Any, table: Table, folder: Path) -> list[Path]:
    return [
        _across_shapes(plt, table, folder, "sections_per_second", "sections per second, × baton", BATON),
        _across_shapes(plt, table, folder, "jain", "fairness (Jain; 1 = equal shares)"),
        _across_shapes(plt, table, folder, "longest_wait_ms", "longest wait, ms", log=True),
    ]


def _across_shapes(
    plt: Any, table: Table, folder: Path, name: str, title: str, base: str | None = None, log: bool = False
) -> Path:
    figure, axes = plt.subplots(1, len(SHAPES), figsize=(13, 4.5), sharey=True, layout="constrained")
    for axis, shape in zip(axes, SHAPES, strict=True):
        spreads = {
            peer: table.ratio(peer, shape, name, base) if base else table.figure(peer, shape, name)
            for peer in table.peers()
        }
        _bars(axis, spreads, f"{shape}: {title}", bound=None if log else 1.0)
        if log:
            axis.set_xscale("log")
    return _save(plt, figure, folder / f"locks-contended-{name.replace('_', '-')}.svg")


def _bars(axis: Any, spreads: dict[str, Spread | None], title: str, bound: float | None = 1.0) -> None:
    known = {peer: spread for peer, spread in spreads.items() if spread is not None}
    values = [spread.median for spread in known.values()]
    whiskers = [
        [spread.median - spread.low for spread in known.values()],
        [spread.high - spread.median for spread in known.values()],
    ]
    colors = [_color(peer) for peer in known]
    axis.barh(list(known), values, xerr=whiskers, color=colors, height=0.7, error_kw={"elinewidth": 0.8})
    axis.set_title(title, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    if bound is not None:
        axis.axvline(bound, color="black", linewidth=0.8, linestyle="--")


def _color(peer: str) -> str:
    if peer.startswith("holdfast"):
        return OURS
    return BOUND if peer in (FLOOR, BATON, "bare socket", "packed, pool connection") else OTHERS


def _save(plt: Any, figure: Any, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
