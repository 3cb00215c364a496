"""`--quick`: the project's targets, each with its goal and what was measured, in under four minutes.

Five rounds. In each the shop is asked as `make serve` serves it, and beside it, on the same servers, under
gunicorn's threads, behind all of Django's usual middleware, for the views that a shop is compared with. The
locks are measured in five rounds of their own. Every figure is the median over its rounds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from benchmarks import contended, uncontended
from benchmarks.awake import cores_awake
from benchmarks.checkout.rounds import HOT, SOLD_OUT
from benchmarks.checkout.subjects import EMPTY, FOR_UPDATE, VIEWS, Subject
from benchmarks.checkout.targets import FAULTS
from benchmarks.checkout.testbed import Testbed, open_testbed
from benchmarks.checkout.web_servers import gunicorn
from benchmarks.figures import Table
from benchmarks.peers import BATON, BY_NAME, FLOOR, JUDGED
from benchmarks.server import Server, private_redis
from benchmarks.targets import Target
from benchmarks.uncontended import NEW_KEY, SAME_KEY
from tests.load.servers import Servers

ROUNDS: Final = 5
BUYERS: Final = 32
SECONDS: Final = 1.5
WARM_UP_SECONDS: Final = 0.8
LOCK_PAIRS: Final = 400
LOCK_SECONDS: Final = 0.8
LOCK_SHAPES: Final = ("2×2", "2×16")
SERVERS: Final = ("web", "postgres", "redis")


class Step(NamedTuple):
    """One run of a round: which of the two shops, what is asked for, and units in stock."""

    shop: str
    subject: Subject
    case: str
    stock: int = 1_000_000


_VIEW = {view.name: view for view in VIEWS}
PLAIN: Final = "combined, plain write"
SERVED, BASE = "as make serve serves it", "gunicorn"
STEPS: Final = (
    Step(BASE, _VIEW[EMPTY], HOT),
    Step(BASE, _VIEW[FOR_UPDATE], HOT),
    Step(SERVED, Subject("combined", "/checkout/", "combined"), HOT),
    Step(SERVED, Subject("combined", "/checkout/", "combined"), SOLD_OUT, stock=0),
    Step(SERVED, Subject("redis_lock", "/checkout/", "redis_lock"), HOT),
    Step(SERVED, Subject(PLAIN, "/bench/plain_write/", "combined"), HOT),
)


def measure(servers: Servers, say: Callable[[str], None], rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the records of shop and locks.

    Args:
        servers: with the shop's tables.
        say: called with a line about each run as soon as it is over.
        rounds: of each.
    """
    with open_testbed(servers, 2, 16) as served, open_testbed(servers, 2, 16, gunicorn) as base:
        records = list(_shop({SERVED: served, BASE: base}, rounds, say))
    with private_redis() as redis:
        return {"quick": records} | _locks(redis, rounds, say)


def _shop(testbeds: dict[str, Testbed], rounds: int, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    for step in STEPS:  # each thread opens its connections
        _run(testbeds, step, WARM_UP_SECONDS)
    for number in range(rounds):
        for step in random.sample(STEPS, len(STEPS)):
            load = os.getloadavg()[0]
            record = _run(testbeds, step, SECONDS) | {"round": number, "load": load}
            say(f"round {number + 1}  " + line_of(record))
            yield record


def _run(testbeds: dict[str, Testbed], step: Step, seconds: float) -> dict[str, Any]:
    figures = testbeds[step.shop].run(step.subject, buyers=BUYERS, seconds=seconds, stock=step.stock)
    milliseconds = {f"{name}_ms": figures.get(f"{name}_cpu_us", 0) / 1000 for name in SERVERS}
    return figures | milliseconds | {"peer": step.subject.name, "case": step.case, "exact": True}


def line_of(record: dict[str, Any]) -> str:
    """Return a run's figures for the reader who waits for the last of them."""
    costs = "".join(f"  {name} {record[f'{name}_ms']:.2f} ms" for name in SERVERS)
    return (
        f"{record['peer'] + ', ' + record['case']:<37}{record['answers_per_second']:>6.0f}/s"
        f"  p99 {record.get('p99_ms', 0):>4.0f} ms{costs}  load {record['load']:.1f}"
    )


def _locks(server: Server, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    alone, waiting = [BY_NAME[FLOOR], BY_NAME[JUDGED]], [BY_NAME[BATON], BY_NAME[JUDGED]]
    with cores_awake():
        uncontended_ = uncontended.measure(server, alone, rounds, LOCK_PAIRS, say)
    contended_ = contended.measure(server, waiting, rounds, LOCK_SECONDS, say, LOCK_SHAPES)
    return {"uncontended": uncontended_, "contended": contended_, "left": _keys_left(server)}


def _keys_left(server: Server) -> int:
    """Return how many keys of 50 names there are when they have been locked and released.

    The record of the process, which goes seconds after its last lock, isn't one of them.
    """
    section = BY_NAME[JUDGED].open(server.url, uncontended.LEASE)
    for number in range(50):
        section(f"left:{number}", uncontended.nothing)
    return len(server.client.keys("*left:*"))


def judge(results: dict[str, Any]) -> list[Target]:
    """Return every target with its measured value."""
    records = results["quick"]
    return [*_shop_targets(records), *_lock_targets(results), _exactness(records)]


def _shop_targets(records: Sequence[dict[str, Any]]) -> Iterator[Target]:
    table = Table(records, "case")
    by_hand = "by-hand select_for_update view (gunicorn 2×16)"
    yield _ratio(table, f"combined × {by_hand}", 10, "combined", HOT, FOR_UPDATE)
    yield _cost(table, "combined: p99, ms", 60, "combined", "p99_ms")
    yield _ratio(table, "sold out × empty view (gunicorn 2×16)", 1.9, "combined", SOLD_OUT, EMPTY)
    yield _cost(table, "combined: web CPU per order, ms", 0.45, "combined", "web_ms")
    yield _cost(table, "combined: PostgreSQL CPU per order, ms", 0.3, "combined", "postgres_ms")
    yield _ratio(table, f"redis_lock × {by_hand}", 1.4, "redis_lock", HOT, FOR_UPDATE)
    yield _cost(table, "redis_lock: web CPU per order, ms", 2.5, "redis_lock", "web_ms")
    yield _ratio(table, f"combined with a plain write × {by_hand}", 3, PLAIN, HOT, FOR_UPDATE)


def _ratio(table: Table, text: str, goal: float, peer: str, case: str, base: str) -> Target:
    measured = table.ratio(peer, case, "answers_per_second", base, base_case=HOT)
    return Target(text, goal, True, measured and measured.median)


def _cost(table: Table, text: str, goal: float, peer: str, figure: str) -> Target:
    measured = table.figure(peer, HOT, figure)
    return Target(text, goal, False, measured and measured.median)


def _lock_targets(results: dict[str, Any]) -> Iterator[Target]:
    alone, waiting = Table(results["uncontended"], "key"), Table(results["contended"], "shape")
    for key, goal in ((NEW_KEY, 1.0), (SAME_KEY, 1.15)):
        ratio = alone.ratio(JUDGED, key, "wall_us", FLOOR, more_is_better=False)
        yield Target(f"lock, {key} × floor", goal, True, ratio and ratio.median)
    for shape in LOCK_SHAPES:
        ratio = waiting.ratio(JUDGED, shape, "sections_per_second", BATON)
        yield Target(f"lock, {shape} × baton", 0.95, True, ratio and ratio.median)
    yield Target("lock: keys left by 50 unfenced names", 0, False, results["left"])


def _exactness(records: Sequence[dict[str, Any]]) -> Target:
    wrong = sum(record[fault] for record in records for fault in FAULTS)
    return Target("oversold + unaccounted + lost + failed, all runs", 0, False, wrong)
