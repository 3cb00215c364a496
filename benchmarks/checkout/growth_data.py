"""What is kept of a growth run: points, the laws fitted to them, and predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.checkout.growth import CROWD, PER_COMMIT
from benchmarks.checkout.model import ASSUMPTIONS, Demand, Law, Point, fit, predictions
from benchmarks.checkout.targets import FAULTS
from benchmarks.stats import spread

Record = dict[str, Any]
MANY = 100
"""Products among which buyers hardly ever meet."""
BATCH = 64
"""Orders in the largest commit of `combined`."""
COSTS = ("web_cpu_us", "postgres_cpu_us", "redis_cpu_us")


def summarize(records: Sequence[Record], circumstances: dict[str, Any]) -> dict[str, Any]:
    """Return the data of the plots and of the model, ready for JSON.

    Args:
        records: of `Growth.measure`.
        circumstances: under which they were taken.
    """
    points = {axis: _points(records, axis) for axis in dict.fromkeys(r["axis"] for r in records)}
    fitted = {peer: _law(of_peer, terms=3) for peer, of_peer in points.get("buyers", {}).items()}
    laws = {peer: law for peer, law in fitted.items() if law}
    batches = _law(points.get(PER_COMMIT, {}).get("combined", []), terms=2)
    return {
        "circumstances": circumstances,
        "rounds": 1 + max((int(record["round"]) for record in records), default=-1),
        "load": median(record["load"] for record in records) if records else None,
        "faults": {name: sum(record[name] for record in _runs(records)) for name in ("errors", *FAULTS)},
        "points": points,
        "laws": laws,
        "commit": batches,
        "predictions": _predictions(records, batches),
        "assumptions": ASSUMPTIONS,
    }


def _runs(records: Sequence[Record]) -> Iterator[Record]:
    """Yield each run once: one that counts for several sizes has a record for each."""
    seen = set()
    for record in records:
        key = tuple(record[name] for name in ("round", "axis", "peer", "run"))
        if key not in seen:
            seen.add(key)
            yield record


def _points(records: Sequence[Record], axis: str) -> dict[str, list[dict[str, Any]]]:
    mine = [record for record in records if record["axis"] == axis]
    return {
        peer: [
            _point([r for r in mine if r["peer"] == peer and r["size"] == size], size)
            for size in sorted({r["size"] for r in mine if r["peer"] == peer})
        ]
        for peer in sorted({record["peer"] for record in mine})
    }


def _point(records: Sequence[Record], size: int) -> dict[str, Any]:
    rate = spread([record["answers_per_second"] for record in records])
    point = {"size": size, "low": rate.low, "median": rate.median, "high": rate.high}
    costs = [sum(record[cost] for cost in COSTS) / 1000 for record in records if COSTS[0] in record]
    waits = [record["p99_ms"] for record in records if "p99_ms" in record]
    point |= {"cpu_ms": median(costs)} if costs else {}
    point |= {"p99_ms": median(waits)} if waits else {}
    return {name: round(value, 3) for name, value in point.items()} | {
        name: sum(record[name] for record in records) for name in ("errors", *FAULTS)
    }


def _law(points: Sequence[dict[str, Any]], terms: int) -> dict[str, Any] | None:
    """Return the law of the points and their residuals; None of points that are too few."""
    measured: list[Point] = [(point["size"], point["median"]) for point in points]
    if sum(rate > 0 for _, rate in measured) < terms:
        return None
    law = fit(measured, terms)
    return {
        "fixed": law.fixed,
        "each": law.each,
        "pair": law.pair,
        "alone": law.alone,
        "contention": law.contention,
        "coherency": law.coherency,
        "limit": law.limit if math.isfinite(law.limit) else None,
        "residuals": [round(residual, 4) for residual in law.residuals(measured)],
    }


def _predictions(records: Sequence[Record], commit: dict[str, Any] | None) -> list[dict[str, object]]:
    """Return what is predicted for many products, and for one where it is known how long its row is held.

    That is `combined` alone: what a buyer more adds to the others' queues contains waiting for processors.
    """
    one = _demands(records, "buyers", CROWD)
    hot = {"combined": one["combined"]._replace(row=_share(commit))} if commit and "combined" in one else {}
    many = _demands(records, "products", MANY)
    return [*predictions(hot, one_product=True), *predictions(many, one_product=False)]


def _share(commit: dict[str, Any]) -> float:
    """Return for how many seconds one order of a full commit has the hot row."""
    return Law(commit["fixed"], commit["each"]).seconds(BATCH) / BATCH


def _demands(records: Sequence[Record], axis: str, wanted: int) -> dict[str, Demand]:
    """Return by strategy what an order costs at the measured size that is nearest to the one wanted."""
    known = [record for record in records if record["axis"] == axis and COSTS[0] in record]
    nearest = min((record["size"] for record in known), key=lambda size: abs(size - wanted), default=0)
    mine = [record for record in known if record["size"] == nearest]
    return {
        peer: _demand([record for record in mine if record["peer"] == peer])
        for peer in sorted({record["peer"] for record in mine})
    }


def _demand(records: Sequence[Record]) -> Demand:
    """Return what an order costs; what Redis does beside orders of which it isn't asked isn't theirs."""
    web, postgres, redis = (median(record[cost] for record in records) / 1e6 for cost in COSTS)
    asked = median(record["redis_requests"] for record in records) >= 0.5
    return Demand(web, postgres, redis if asked else 0.0)
