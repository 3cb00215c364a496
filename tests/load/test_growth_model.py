"""The model of growth: its laws are the published ones, its fits find them, its bounds are the least."""

from __future__ import annotations

import json
from contextlib import nullcontext
from importlib import import_module
from random import Random
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from benchmarks.checkout import growth
from benchmarks.checkout.growth_data import summarize
from benchmarks.checkout.model import SITES, Demand, Law, Site, fit, predict
from tests import ROOT

BUYERS = growth.BUYERS
FACTS = {"cores": 2, "commit": "0123456789"}


def gunther(n: float, alone: float, contention: float, coherency: float) -> float:
    """Return the Universal Scalability Law as Gunther writes it."""
    return alone * n / (1 + contention * (n - 1) + coherency * n * (n - 1))


@pytest.mark.parametrize("published", [(100, 0.2, 0.001), (40, 0.9, 0.0), (40, 0.0, 0.0), (900, 0.05, 0.02)])
def test_a_fit_finds_the_published_law(published):
    """Points that lie on Gunther's curve give back its λ, σ and κ, and leave no residuals."""
    points = [(n, gunther(n, *published)) for n in BUYERS]
    law = fit(points)
    assert (law.alone, law.contention, law.coherency) == pytest.approx(published, abs=1e-6)
    assert law.residuals(points) == pytest.approx([0] * len(points), abs=1e-6)


def test_a_fit_of_group_commit_finds_both_times():
    """Commits of 4 ms and 0.1 ms per order are found again from their throughput."""
    law = fit([(n, n / (0.004 + 0.0001 * n)) for n in growth.BATCHES], terms=2)
    assert (law.fixed, law.each, law.pair) == pytest.approx((0.004, 0.0001, 0), abs=1e-9)
    assert law.limit == pytest.approx(10_000)


def test_a_fit_has_no_coefficient_below_zero():
    """Points that only negative seconds would fit are fitted by the law that comes nearest without any."""
    points = [(1, 100.0), (2, 260.0), (4, 700.0), (8, 1900.0)]
    law = fit(points)
    assert min(law.fixed, law.each, law.pair) >= 0
    assert max(map(abs, law.residuals(points))) > 0.1  # and the residuals say that it doesn't fit


def test_no_other_law_is_nearer_than_the_fitted_one():
    """Among a thousand laws around the fitted one, none has smaller relative errors of response times."""
    chance = Random(14)
    points = [(n, gunther(n, 100, 0.3, 0.002) * chance.uniform(0.8, 1.2)) for n in BUYERS]

    def errors(law: Law) -> float:
        return sum((law.seconds(n) * rate / n - 1) ** 2 for n, rate in points)

    best = fit(points)
    for _ in range(1000):
        near = [part * chance.uniform(0.9, 1.1) for part in (best.fixed, best.each, best.pair)]
        assert errors(Law(*near)) >= errors(best)


def test_too_few_points_are_refused():
    """Two points determine no law of three coefficients; points without an answer don't count."""
    with pytest.raises(ValueError, match="2 points cannot determine 3 coefficients; measure more sizes"):
        fit([(1, 10.0), (2, 15.0), (4, 0.0)])


def test_the_limit_is_the_peak_of_the_curve():
    """No number of buyers gets more than the limit, and some number gets it."""
    law = Law(0.01, 0.001, 0.00001)
    rates = [law.throughput(n / 10) for n in range(1, 5000)]
    assert max(rates) == pytest.approx(law.limit, rel=1e-4)


@pytest.mark.parametrize(
    ("site", "one_product", "expected"),
    [
        (Site("small", 2), True, (1000.0, "processors")),
        (Site("big", 32), True, (5000.0, "the hot row")),
        (Site("big", 32), False, (10_000.0, "Redis' thread")),
        (Site("apart", 2, 1), False, (2000.0, "web processors")),
        (Site("apart", 2, 8), False, (4000.0, "PostgreSQL's processors")),
    ],
)
def test_the_least_bound_is_predicted(site, one_product, expected):
    """1 ms of web, 0.5 of PostgreSQL, ... : whichever resource allows the least is named, with its rate."""
    demand = Demand(web=0.001, postgres=0.0005, redis=0.0001, row=0.0002)
    if site.name == "small":
        demand = demand._replace(web=0.0014)
    rate, resource = predict(demand, site, one_product=one_product)
    assert (pytest.approx(rate), resource) == expected


def measured(peers=("combined", "redis_lock"), rounds=3):
    """Return records of rounds in which every strategy grows by a law, and costs the same."""
    return [
        {"round": number, "axis": axis, "peer": peer, "size": size, "run": size, "case": f"{size} {axis}"}
        | {"answers_per_second": gunther(size, 100 + number, 0.2, 0.001), "p99_ms": 9.0, "load": 1.0}
        | {"web_cpu_us": 400.0, "postgres_cpu_us": 300.0, "redis_cpu_us": 10.0, "errors": number}
        | {"redis_requests": 0.01 if peer == "combined" else 2.0}
        | {"oversold": 0, "unaccounted": 0, "lost": 0, "failed": 0}
        for axis, sizes in growth.SIZES.items()
        for peer in (("combined",) if axis == growth.PER_COMMIT else peers)
        for size in sizes
        for number in range(rounds)
    ]


def test_a_run_is_summarized_whole():
    """Every axis, strategy and size has its median and its faults; laws, residuals and predictions follow."""
    data = summarize(measured(), FACTS)
    assert list(data["points"]) == list(growth.SIZES)
    assert [point["size"] for point in data["points"]["buyers"]["redis_lock"]] == list(BUYERS)
    assert data["points"]["buyers"]["redis_lock"][0]["median"] == 101
    assert data["points"]["buyers"]["redis_lock"][0]["errors"] == 3
    assert len(data["laws"]["combined"]["residuals"]) == len(BUYERS)
    places = {(row["peer"], row["products"], row["site"]) for row in data["predictions"]}
    assert len(places) == 3 * len(SITES) == len(data["predictions"])
    assert {place[0] for place in places if place[1] == "one"} == {"combined"}
    json.dumps(data)


def test_only_those_who_ask_redis_are_bound_by_it():
    """Redis' own chores beside orders that never ask it aren't counted as these orders' need."""
    data = summarize(measured(), FACTS)
    bound = {row["peer"] for row in data["predictions"] if row["bottleneck"] == "Redis' thread"}
    assert bound == {"redis_lock"}


def test_points_without_an_order_fit_no_law():
    """A strategy that sold nothing in its windows has its points, and no law; the rest is kept."""
    records = measured()
    for record in records:
        if record["peer"] == "redis_lock" and record["axis"] == "buyers":
            record["answers_per_second"] = 0.0
    data = summarize(records, FACTS)
    assert set(data["laws"]) == {"combined"}
    assert data["points"]["buyers"]["redis_lock"][0]["median"] == 0


def test_a_run_that_counts_for_several_sizes_has_its_errors_once():
    """It has a record per size, and one run behind them."""
    record = measured(peers=["redis_lock"], rounds=1)[0] | {"axis": "buyers", "errors": 2, "run": 1}
    records = [record | {"size": size, "case": f"{size} buyers"} for size in growth.SIZES["buyers"]]
    assert summarize(records, FACTS)["faults"]["errors"] == 2


def test_what_time_was_short_for_is_named():
    """Sizes without a record are listed; a run that was cut short isn't taken for a whole one."""
    records = [record for record in measured() if record["case"] != "256 buyers"]
    assert growth.missing(records, growth.SIZES) == ["256 buyers"]


def test_every_axis_has_its_plot(monkeypatch, tmp_path):
    """The plots of a whole run are well-formed, say their figures in words, and name their circumstances."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    plots = import_module("growth_plots")
    assert plots.pictures(tmp_path) == {}
    (tmp_path / plots.DATA).write_text(json.dumps(summarize(measured(), FACTS)))
    drawn = plots.pictures(tmp_path)
    assert len(drawn) == len(growth.SIZES) + 2
    for name, picture in drawn.items():
        root = ElementTree.fromstring(picture)  # noqa: S314  our own
        assert root.get("aria-label"), name
        assert "nan" not in picture, name
    assert "commit 0123456; " in drawn["growth-buyers.svg"]
    assert "A model, not measured" in drawn["growth-prediction.svg"]


def test_no_run_is_begun_after_the_time(monkeypatch):
    """When the minutes are over, what is left of the round is left out."""
    moments = iter([0.0, 1.0, 59.0, 60.0])
    monkeypatch.setattr(growth, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    measuring = growth.Growth(None, 1.0, None, print)  # type: ignore[arg-type]
    measuring.ends = 60.0
    next(moments)
    assert len(list(measuring._in_time(range(9)))) == 2


class FakeTestbed:
    """A shop that answers seven orders and two refusals, whatever is asked of it."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, subject, **_):
        statuses = {"201": 7, "503": 2}
        costs = dict.fromkeys(("web_cpu_us", "postgres_cpu_us", "redis_cpu_us", "redis_requests"), 1.0)
        faults = {"oversold": 0, "unaccounted": 1, "lost": 0, "failed": 0}
        speed = {"answers_per_second": 9.0, "p99_ms": 1.0, "statuses": statuses, "unanswered": 1}
        return speed | costs | faults | {"workers": self.workers}


def test_a_round_measures_every_size_of_every_axis(monkeypatch):
    """Each run reports at once what went wrong in it; as many web processes serve as its size says."""
    monkeypatch.setattr(
        growth, "open_testbed", lambda servers, workers, threads: nullcontext(FakeTestbed(workers))
    )
    monkeypatch.setattr(
        "benchmarks.checkout.batches.measure", lambda testbed, size, seconds: testbed.run(None)
    )
    said: list[str] = []
    measuring = growth.Growth(None, 0.1, ["combined", "redis_lock"], said.append)  # type: ignore[arg-type]
    records = measuring.measure(rounds=2)
    assert growth.missing(records, growth.SIZES) == []
    assert {record["round"] for record in records} == {0, 1}
    assert all(record["workers"] == record["size"] for record in records if record["axis"] == "workers")
    assert all(record["workers"] == 2 for record in records if record["axis"] == "buyers")
    assert all("errors 3  oversold 0  unaccounted 1" in line for line in said)
    data = summarize(records, FACTS)
    assert data["faults"] == {
        "errors": 3 * len(said), "oversold": 0, "unaccounted": len(said), "lost": 0, "failed": 0
    }  # fmt: skip
