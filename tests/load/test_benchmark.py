"""The benchmark of the checkout: its client counts right, and its verdicts follow from its records."""

import io
import itertools
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from rich.console import Console

from benchmarks.checkout import growth, quick, steps, web_servers
from benchmarks.checkout.__main__ import _faults
from benchmarks.checkout.clients import Burst, Crowd
from benchmarks.checkout.rounds import CASES, HOT, MANY, SOLD_OUT
from benchmarks.checkout.subjects import DECORATED, EMPTY, FOR_UPDATE, SELECT, UNLOCKED
from benchmarks.checkout.tables import show
from benchmarks.checkout.targets import judge
from benchmarks.checkout.testbed import Meter, _figures
from benchmarks.peers import BATON, FLOOR, JUDGED
from benchmarks.server import Work
from tests.load.wire import Address, pack

FIGURES = dict.fromkeys(
    ("p99_ms", "web_cpu_us", "postgres_cpu_us", "redis_cpu_us", "client_cpu_us", "redis_requests"), 1.0
)


class Counting(BaseHTTPRequestHandler):
    """Answers every third request with 409, the others with 201."""

    protocol_version = "HTTP/1.1"
    numbers = itertools.count(1)
    disable_nagle_algorithm = True

    def do_POST(self):
        """Answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(409 if next(self.numbers) % 3 == 0 else 201)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format, *args):
        """Say nothing."""


def test_the_crowd_counts_every_answer_once():
    """What the server answered and what the buyers counted is the same, to the last request."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    address = Address("127.0.0.1", server.server_port)
    probes = []
    with Crowd(address) as crowd:
        burst = crowd.burst(
            [pack(address, "/", {"n": n}, {}) for n in range(3)],
            buyers=5,
            seconds=1.0,
            warm=0.1,
            probe=lambda: probes.append(1),
        )
    server.shutdown()
    server.server_close()
    answered = next(Counting.numbers) - 1
    assert burst.total[201] + burst.total[409] == answered
    assert burst.total[409] == answered // 3
    assert burst.lost == 0
    assert 0 < sum(burst.counted.values()) <= answered
    assert len(burst.latencies) == sum(burst.counted.values())
    assert len(probes) == 2


def test_a_window_without_an_answer_has_no_costs():
    """Costs are by answer; of none there is none to tell, and the ratio of speeds is 0."""
    idle = Meter(0.0, 0.0, Work(0, 0, 0.0))
    busy = Meter(1.0, 2.0, Work(21, 30, 0.5))
    empty = _figures(Burst(1.0), idle, busy)
    assert empty["answers_per_second"] == 0
    assert "web_cpu_us" not in empty
    burst = Burst(2.0, counted=Counter({201: 10}), latencies=[0.01 * n for n in range(1, 11)])
    figures = _figures(burst, idle, busy)
    assert (figures["web_cpu_us"], figures["postgres_cpu_us"], figures["redis_requests"]) == (
        100_000,
        200_000,
        2,
    )
    assert (figures["answers_per_second"], figures["p99_ms"]) == (5, 100)


def records(**speeds):
    """Return one round in which each subject answers so many a second, whatever is asked."""
    named = {EMPTY: 1000, SELECT: 800, UNLOCKED: 120, FOR_UPDATE: 100, DECORATED: 85} | speeds
    return [
        {"round": 0, "shape": "2×16", "case": case, "peer": peer, "exact": peer != UNLOCKED}
        | {"answers_per_second": float(speed), "oversold": 0, "unaccounted": 0, "lost": 0, "failed": 0}
        | FIGURES
        for peer, speed in named.items()
        for case in CASES
    ]


def test_targets_are_judged_by_the_best_strategy():
    """The ratio is that of the fastest strategy to its base in the same round."""
    verdicts = {target.text: target for target in judge({"rounds": {"records": records(slow=90, quick=650)}})}
    assert verdicts["2×16: best strategy (quick) × select_for_update view"].measured == 6.5
    assert verdicts["2×16: best strategy (quick) × empty view"].verdict == "reached"
    assert verdicts["2×16: sold out (quick) × empty view"].verdict == "missed"
    assert verdicts[f"2×16: {DECORATED} × select_for_update view"].measured == 0.85
    assert verdicts["oversold + unaccounted + lost + failed, all runs"].verdict == "reached"


@pytest.mark.parametrize("fault", ["oversold", "unaccounted", "lost", "failed"])
def test_books_that_are_not_exact_are_reported(fault):
    """One wrong unit in one run is named, unless the view is meant to oversell."""
    wrong = records(quick=650)
    for record in wrong:
        record[fault] = 1 if record["peer"] in (UNLOCKED, "quick") and record["case"] == HOT else 0
    assert _faults({"rounds": {"records": wrong}}) == [f"quick, {HOT}: {fault} 1"]
    assert [target.verdict for target in judge({"rounds": {"records": wrong}})][-1] == "missed"


@pytest.mark.parametrize("axis", [axis for axis in growth.AXES if axis != growth.PER_COMMIT])
def test_whatever_grows_is_measured_at_every_size(axis):
    """Each strategy has a figure at each size, and so has the view that is written by hand."""
    wanted = ["redis_lock", "combined"]
    steps = list(growth._steps(axis, wanted, growth.SIZES[axis]))
    sizes = {
        peer: sorted(n for s in steps if s.peer == peer for n in s.sizes) for peer in {s.peer for s in steps}
    }
    assert set(sizes) == {growth.BASE.name, *wanted}
    assert all(tuple(found) == growth.SIZES[axis] for found in sizes.values())


def test_everything_measured_is_printed():
    """Speeds, costs, growth, targets and faults have their lines."""
    facts = {"cpu": "c", "cores": 2, "load_before": [0.0], "python": "3", "commit": "x", "dirty": True}
    growth = [r | {"axis": "buyers", "size": 16, "case": "16 buyers"} for r in records() if r["case"] == MANY]
    results = {
        "circumstances": facts,
        "rounds": {"records": records(quick=650), "statements": {"quick": 6.0}},
        "growth": growth,
        "targets": [
            {"text": "t", "wanted": 1, "at_least": True, "measured": None, "verdict": "not measured"}
        ],
        "faults": [f"quick, {SOLD_OUT}: lost 1"],
    }
    paper = io.StringIO()
    show(Console(file=paper, width=150), results)
    printed = paper.getvalue()
    for text in ("with uncommitted changes", "6.50 [6.50–6.50]", "by buyers", "not measured", "lost 1"):
        assert text in printed


def quick_results(**changed):
    """Return what five rounds measured: the shop sells `number + 10` times as much in each round."""
    rates = {(EMPTY, HOT): 2000, (FOR_UPDATE, HOT): 100, ("redis_lock", HOT): 140, (quick.PLAIN, HOT): 290}
    rates |= {("combined", HOT): 1000, ("combined", SOLD_OUT): 2400}
    records = [
        {"round": number, "peer": peer, "case": case, "exact": True, "load": 1.0}
        | {"answers_per_second": rate * (number + 10), "p99_ms": 50 + number}
        | {
            "web_ms": 0.4,
            "postgres_ms": 0.5,
            "redis_ms": 0.0,
            "oversold": 0,
            "unaccounted": 0,
            "lost": 0,
            "failed": 0,
        }
        for number in range(5)
        for (peer, case), rate in rates.items()
    ]
    alone = [
        {"round": 0, "key": key, "peer": peer, "wall_us": wall}
        for key in ("new key", "same key")
        for peer, wall in ((FLOOR, 120.0), (JUDGED, 100.0))
    ]
    contended = [
        {"round": 0, "shape": shape, "peer": peer, "sections_per_second": rate}
        for shape in quick.LOCK_SHAPES
        for peer, rate in ((BATON, 100.0), (JUDGED, 98.0))
    ]
    return {"quick": records, "uncontended": alone, "contended": contended, "left": 0} | changed


def test_quick_judges_exactly_the_targets():
    """Each target is there once, with the median of its rounds or of the rounds' ratios."""
    targets = quick.judge(quick_results())
    assert [(target.wanted, target.measured, target.verdict) for target in targets] == [
        (10, 10, "reached"),
        (60, 52, "reached"),
        (1.9, 1.2, "missed"),
        (0.45, 0.4, "reached"),
        (0.3, 0.5, "missed"),
        (1.4, 1.4, "reached"),
        (2.5, 0.4, "reached"),
        (3, 2.9, "missed"),
        (1.0, 1.2, "reached"),
        (1.15, 1.2, "reached"),
        (0.95, 0.98, "reached"),
        (0.95, 0.98, "reached"),
        (0, 0, "reached"),
        (0, 0, "reached"),
    ]


def test_quick_tells_books_that_are_not_exact():
    """An order that is lost in one run is named, and the target is missed."""
    results = quick_results()
    results["quick"][2]["lost"] = 1
    assert len(_faults(results)) == 1
    assert quick.judge(results)[-1].verdict == "missed"


def test_quick_says_each_run_when_it_is_over():
    """The reader sees a line per run, with the machine's load beside its figures."""

    class Shop:
        def run(self, subject, **_):
            return {"answers_per_second": 7.0, "p99_ms": 8.0, "web_cpu_us": 900.0}

    said: list[str] = []
    testbeds: Any = {quick.SERVED: Shop(), quick.BASE: Shop()}
    list(quick._shop(testbeds, 2, said.append))
    assert len(said) == 2 * len(quick.STEPS)
    assert all("load" in line and "7/s" in line and "web 0.90 ms" in line for line in said)


def test_web_servers_are_compared_round_by_round():
    """The summary has a row for each server: medians of ratios to gunicorn's threads, and its costs."""
    rates = {"granian": 200.0, "gunicorn gthread": 100.0}
    records = [
        {"round": number, "peer": peer, "case": subject.name, "answers_per_second": rate * (number + 1)}
        | {"web_cpu_us": 450.0, "p99_ms": 70.0}
        for number in range(3)
        for peer, rate in rates.items()
        for subject in web_servers.SUBJECTS
    ]
    rows = list(web_servers.summary(records))
    ratio = "2.00 [2.00–2.00]"
    assert f"| granian | {ratio} | {ratio} | 0.45 | 0.45 | 70 |" in rows


def test_each_web_server_is_started_by_its_own_command():
    """Port, processes and threads are in the command of each."""
    for name, command in web_servers.COMMANDS.items():
        words = " ".join(command(8123, 2, 16))
        assert "8123" in words, name
        assert "config" in words, name


def test_the_time_of_a_step_is_its_own(monkeypatch):
    """A step within another one is counted once; one that an order did not take has cost it nothing."""
    ticks = iter([0, 1_000, 4_000, 9_000])
    monkeypatch.setattr("benchmarks.checkout.steps.time.thread_time_ns", lambda: next(ticks))
    clock = steps.Clock()
    outer, inner, other, *_ = steps.STEPS.values()
    clock.around(outer, clock.around(inner, lambda: None))()
    clock.end_order()
    assert [clock.orders[step] for step in (outer, inner, other)] == [[6.0], [3.0], [0.0]]


def test_every_step_is_a_function_of_the_project_or_of_its_libraries():
    """A function that was renamed is noticed here, not after the servers have started."""
    with steps.clocked() as clock:
        assert set(clock.orders) == set(steps.STEPS.values())


def test_what_postgresql_tells_is_grouped_by_statement():
    """Other messages, and statements that are not of a batch, are left out."""
    outcome_of = [
        "duration: 0.250 ms  execute _pg3_0: SELECT id FROM inventory_item",
        "duration: 2.000 ms  execute _pg3_1: \nWITH \nwanted AS (",
        "duration: 4.000 ms  execute _pg3_1: \nWITH \nwanted AS (",
        "duration: 1.000 ms  execute <unnamed>: COMMIT",
        "checkpoint starting",
    ]
    assert steps.statements(outcome_of) == {"execute SELECT": [0.25], "execute WITH": [2.0, 4.0]}
