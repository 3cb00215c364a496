"""The plots of how a checkout grows, drawn from `plots/growth.json`, which the benchmark writes.

`python docs/growth_plots.py DIR` draws those of the data in a folder.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shapes import Bar, bars, svg, words

PLOTS = Path(__file__).parent / "plots"
DATA = "growth.json"
FIRST = (
    "combined",
    "row_lock",
    "conditional_update",
    "redis_lock",
    "segmented_rows",
    "select_for_update view",
)
"""Whose color and mark are the same in every plot."""
MARKS = "●■▲◆▼○"
LIGHT = ("#1d4ed8", "#b45309", "#0b6e4f", "#b3261e", "#7c3aed", "#52606d")
DARK = ("#8ab4ff", "#f4b860", "#6fd69b", "#ff8a80", "#c4a5fd", "#a3b2ae")
WIDE, HIGH, LOW = 300, 220, 80  # of a panel, and of one with residuals
LEFT, TOP, GAP = 62, 58, 76


def _colors(colors: Sequence[str]) -> str:
    return ";".join(f"--s{number}:{color}" for number, color in enumerate(colors))


STYLE = (
    f"<style>.drawn{{{_colors(LIGHT)}}}@media(prefers-color-scheme:dark){{.drawn{{{_colors(DARK)}}}}}"
    + "".join(
        f".drawn .s{n}{{stroke:var(--s{n})}}.drawn text.s{n}{{fill:var(--s{n});stroke:none;font-size:10px}}"
        for n in range(len(MARKS))
    )
    + ".drawn .grid{stroke:var(--line);opacity:.3}</style>"
)


class Panel(NamedTuple):
    """Where values lie: sizes by their logarithm to the right, values from `least` to `most` upwards."""

    x: float
    y: float
    height: float
    sizes: Sequence[float]
    least: float
    most: float

    def at(self, size: float, value: float) -> tuple[float, float]:
        """Return the place of a value."""
        first, last = math.log(self.sizes[0]), math.log(self.sizes[-1])
        right = (math.log(size) - first) / ((last - first) or 1)
        up = (min(max(value, self.least), self.most) - self.least) / (self.most - self.least)
        return self.x + WIDE * right, self.y + self.height * (1 - up)


class Series(NamedTuple):
    """A name, its values by size, the quartiles where they are known, and the law through them."""

    name: str
    values: Mapping[float, float]
    spreads: Mapping[float, tuple[float, float]] = {}
    law: Callable[[float], float] | None = None


def pictures(folder: Path = PLOTS) -> dict[str, str]:
    """Return the SVG of each plot by its file name; none without data in the folder."""
    if not (folder / DATA).exists():
        return {}
    data = json.loads((folder / DATA).read_text())
    drawn = {
        f"growth-{_file_name(axis)}.svg": _growth(data, axis) for axis in data["points"] if axis != COMMIT
    }
    if data["laws"]:
        drawn["growth-model.svg"] = _fitted(data, "buyers", data["laws"])
    if data["commit"]:
        drawn["growth-commit.svg"] = _fitted(data, COMMIT, {"combined": data["commit"]})
    if data["predictions"]:
        drawn["growth-prediction.svg"] = _predicted(data)
    return drawn


COMMIT = "orders per commit"


def _file_name(axis: str) -> str:
    return axis.replace(", ", "-").replace(" ", "-")


def _circumstances(data: Mapping[str, Any]) -> str:
    facts, faults = data["circumstances"], data["faults"]
    wrong = sum(count for name, count in faults.items() if name != "errors")
    return (
        f"{facts['cores']} cores, load {data['load']:.1f}, {data['rounds']} rounds,"
        f" commit {facts['commit'][:7]}; {faults['errors']} errors,"
        f" {wrong} units oversold, lost or unaccounted"
    )


def _growth(data: Mapping[str, Any], axis: str) -> str:
    peers = data["points"][axis]
    speed = [_series(name, points, "median") for name, points in _in_order(peers)]
    cost = [_series(name, points, "cpu_ms") for name, points in _in_order(peers)]
    title = f"A checkout by {axis}"
    shapes = [STYLE, words(16, 24, title, "head"), words(16, 42, _circumstances(data), "quiet")]
    shapes += _panel(speed, LEFT, TOP, HIGH, "orders per second", axis)
    shapes += _panel(cost, LEFT + WIDE + GAP, TOP, HIGH, "processor ms per order, all servers", axis)
    return _whole(shapes, title, speed, TOP + HIGH + 62)


def _fitted(data: Mapping[str, Any], axis: str, laws: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw measured points, the law through them, and below how far they lie from it."""
    peers = {name: points for name, points in data["points"][axis].items() if name in laws}
    speed = [
        _series(name, points, "median")._replace(law=_throughput(laws[name]))
        for name, points in _in_order(peers)
    ]
    apart = [
        Series(name, dict(zip(_sizes(points), laws[name]["residuals"], strict=True)))
        for name, points in _in_order(peers)
    ]
    title = f"Measured (marks) and the law fitted to it (lines): orders per second by {axis}"
    shapes = [STYLE, words(16, 24, title, "head"), words(16, 42, _circumstances(data), "quiet")]
    shapes += _panel(speed, LEFT, TOP, HIGH, "orders per second", "")
    shapes += _residuals(apart, LEFT, TOP + HIGH + 46, axis)
    shapes += _coefficients(laws, LEFT + WIDE + 40, TOP + 14)
    return _whole(shapes, title, speed, TOP + HIGH + LOW + 106)


def _predicted(data: Mapping[str, Any]) -> str:
    rows = [row for row in data["predictions"] if row["peer"] == "combined"]
    values = [
        Bar(
            f"{row['products']} product{'s' * (row['products'] == 'many')}, {row['site']}",
            row["orders_per_second"],
            f"{row['orders_per_second']:,.0f}: {row['bottleneck']}",
        )
        for row in rows
    ]
    return bars(
        "A model, not measured: most orders per second by `combined`, and what binds",
        values,
        ours="one",
        wide=160,
    )


def _throughput(law: Mapping[str, Any]) -> Callable[[float], float]:
    return lambda n: n / (law["fixed"] + law["each"] * n + law["pair"] * n * n)


def _in_order(peers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return iter(sorted(peers.items(), key=lambda item: (_number(item[0]), item[0])))


def _number(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST) - 1


def _sizes(points: Iterable[Mapping[str, Any]]) -> list[float]:
    return [point["size"] for point in points]


def _series(name: str, points: Sequence[Mapping[str, Any]], figure: str) -> Series:
    known = [point for point in points if figure in point]
    spreads = {p["size"]: (p["low"], p["high"]) for p in known} if figure == "median" else {}
    return Series(name, {point["size"]: point[figure] for point in known}, spreads)


def _panel(
    series: Sequence[Series], x: float, y: float, height: float, title: str, axis: str
) -> Iterator[str]:
    sizes = sorted({size for each in series for size in each.values})
    tops = [
        end
        for each in series
        for end in (*each.values.values(), *(high for _, high in each.spreads.values()))
    ]
    step = _step(max(tops, default=1.0))
    panel = Panel(x, y + 14, height, sizes, 0.0, step * math.ceil(max(tops, default=1.0) / step))
    yield words(x, y + 4, title, "quiet")
    yield from _grid(panel, [step * n for n in range(round(panel.most / step) + 1)], "{:,g}", axis)
    for each in series:
        yield from _line(panel, each)


def _residuals(series: Sequence[Series], x: float, y: float, axis: str) -> Iterator[str]:
    sizes = sorted({size for each in series for size in each.values})
    most = max(0.1, *(abs(value) for each in series for value in each.values.values()))
    panel = Panel(x, y + 14, LOW, sizes, -most, most)
    yield words(x, y + 4, "residuals: measured ÷ law - 1", "quiet")
    yield from _grid(panel, [-most, 0.0, most], "{:+.0%}", axis)
    for each in series:
        yield from (_mark(panel, _number(each.name), n, value) for n, value in each.values.items())


def _grid(panel: Panel, values: Sequence[float], form: str, axis: str) -> Iterator[str]:
    for value in values:
        _, y = panel.at(panel.sizes[0], value)
        yield f'<path class="grid" d="M{panel.x:g} {y:.1f}h{WIDE}"/>'
        yield words(panel.x - 8, y + 4, form.format(value), "quiet", "end")
    bottom = panel.y + panel.height
    for size in panel.sizes:
        yield words(panel.at(size, 0)[0], bottom + 16, f"{size:g}", "quiet", "middle")
    yield words(panel.x + WIDE / 2, bottom + 32, axis, "quiet", "middle")


def _line(panel: Panel, series: Series) -> Iterator[str]:
    number = _number(series.name)
    if series.law:
        first, last = panel.sizes[0], panel.sizes[-1]
        steps = [first * (last / first) ** (step / 40) for step in range(41)]
        path = [panel.at(size, series.law(size)) for size in steps]
    else:
        path = [panel.at(*value) for value in series.values.items()]
    yield f'<path class="s{number}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in path)}"/>'
    for size, (low, high) in series.spreads.items():
        (x, top), (_, end) = panel.at(size, high), panel.at(size, low)
        yield f'<line class="s{number}" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{end:.1f}"/>'
    yield from (_mark(panel, number, size, value) for size, value in series.values.items())


def _mark(panel: Panel, number: int, size: float, value: float) -> str:
    x, y = panel.at(size, value)
    return words(round(x, 1), round(y + 3.5, 1), MARKS[number], f"s{number}", "middle")


def _coefficients(laws: Mapping[str, Mapping[str, Any]], x: float, y: float) -> Iterator[str]:
    yield words(x, y, "n ÷ (fixed + each · n + pair · n²)", "quiet")
    for row, (name, law) in enumerate(_in_order(laws)):
        worst = max(abs(residual) for residual in law["residuals"])
        yield words(x, y + 24 + 44 * row, f"{MARKS[_number(name)]} {name}", f"s{_number(name)}")
        yield words(
            x,
            y + 38 + 44 * row,
            f"{law['fixed'] * 1000:.2f} ms + {law['each'] * 1000:.3f} ms · n"
            f" + {law['pair'] * 1e6:.3f} µs · n², off by ≤ {worst:.0%}",
            "quiet",
        )


def _step(most: float) -> float:
    """Return a round distance of at most five lines below `most`."""
    power = 10 ** math.floor(math.log10(most / 5)) if most > 0 else 1.0
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 5 >= most)


def _whole(shapes: list[str], title: str, series: Sequence[Series], y: float) -> str:
    for place, each in enumerate(series):
        number = _number(each.name)
        shapes.append(words(LEFT + 225 * (place % 3), y + 20 * (place // 3), MARKS[number], f"s{number}"))
        shapes.append(words(LEFT + 16 + 225 * (place % 3), y + 20 * (place // 3), each.name, "quiet"))
    label = "; ".join(
        f"{each.name}: " + ", ".join(f"{size:g}: {value:,.0f}" for size, value in each.values.items())
        for each in series
    )
    height = y + 20 * math.ceil(len(series) / 3) + 6
    return svg(2 * LEFT + 2 * WIDE + GAP, round(height), f"{title}. {label}", shapes)


if __name__ == "__main__":
    for name, picture in pictures(Path(sys.argv[1])).items():
        (Path(sys.argv[1]) / name).write_text(picture)
