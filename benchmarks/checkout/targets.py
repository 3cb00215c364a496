"""What a checkout through HTTP is to reach, and whether it did: a statement about one run on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.checkout.rounds import HOT, MANY, SOLD_OUT
from benchmarks.checkout.subjects import DECORATED, EMPTY, FOR_UPDATE, UNLOCKED, VIEWS
from benchmarks.figures import Table
from benchmarks.targets import Target

FAULTS = ("oversold", "unaccounted", "lost", "failed")


def judge(results: dict[str, Any]) -> list[Target]:
    """Return every target with what was measured, the best shape of each."""
    records = results.get("rounds", {}).get("records", [])
    shapes = sorted({record["shape"] for record in records})
    tables = {shape: Table([r for r in records if r["shape"] == shape], "case") for shape in shapes}
    return [target for shape, table in tables.items() for target in _of_shape(shape, table)] + [
        _exactness(results)
    ]


def _of_shape(shape: str, table: Table) -> Iterator[Target]:
    best = _best(table, HOT)
    yield _target(
        table, f"{shape}: best strategy ({best}) × select_for_update view", 6, best, HOT, FOR_UPDATE
    )
    yield _target(table, f"{shape}: best strategy ({best}) × empty view", 0.5, best, HOT, EMPTY)
    quickest = _best(table, SOLD_OUT)
    yield _target(table, f"{shape}: sold out ({quickest}) × empty view", 0.8, quickest, SOLD_OUT, EMPTY)
    yield _target(table, f"{shape}: {DECORATED} × select_for_update view", 0.8, DECORATED, HOT, FOR_UPDATE)
    yield _target(
        table, f"{shape}: {DECORATED} × unlocked view, 100 products", 0.9, DECORATED, MANY, UNLOCKED
    )


def _target(table: Table, text: str, wanted: float, peer: str, case: str, base: str) -> Target:
    ratio = table.ratio(peer, case, "answers_per_second", base)
    return Target(text, wanted, True, ratio and ratio.median)


def _best(table: Table, case: str) -> str:
    """Return the strategy that answers most in this case."""
    views = {view.name for view in VIEWS}
    rates = {
        peer: table.figure(peer, case, "answers_per_second") for peer in table.peers() if peer not in views
    }
    known = {peer: rate.median for peer, rate in rates.items() if rate}
    return max(known, key=known.__getitem__, default="none")


def _exactness(results: dict[str, Any]) -> Target:
    records = [*results.get("rounds", {}).get("records", []), *results.get("growth", [])]
    wrong = sum(record[fault] for record in records if record["exact"] for fault in FAULTS)
    return Target("oversold + unaccounted + lost + failed, all runs", 0, False, wrong if records else None)
