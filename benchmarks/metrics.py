"""What it costs to be counted and traced: `python -m benchmarks.metrics [--rounds N] [--json FILE]`.

One thread takes and releases an uncontended lock, without observers and with each kind of observer. The
time is taken in slices of a few milliseconds, the kinds in turns and in a random order, so that whatever else
the machine does falls on all of them; the ratio is taken in each round.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.awake import cores_awake
from benchmarks.circumstances import describe_machine
from benchmarks.django_setup import configure_django
from benchmarks.server import private_redis
from benchmarks.stats import spread

UNOBSERVED = "no observer"
PAIRS = 200
SLICES = 10
WARM_UP = 3


class Cost(NamedTuple):
    """Microseconds of a pair: on the clock, and of the processor in the thread that locks."""

    wall: float
    cpu: float


Listening = Callable[[], AbstractContextManager[object]]


def kinds() -> dict[str, Listening]:
    """Return who may listen, by name."""
    prometheus = import_module("locking.contrib.prometheus")
    tracing = import_module("locking.contrib.opentelemetry")
    sdk = import_module("opentelemetry.sdk.trace")
    meter = prometheus.Meter(registry=prometheus.CollectorRegistry())
    recording = tracing.Spans(sdk.TracerProvider().get_tracer("benchmarks"))
    idle = tracing.Spans(tracing.get_tracer("benchmarks"))
    return {
        UNOBSERVED: nullcontext,
        "Prometheus": lambda: _observed_by(meter),
        "OpenTelemetry, no SDK": lambda: _observed_by(idle),
        "OpenTelemetry, recording": lambda: _observed_by(recording),
        "log at DEBUG, thrown away": _logged,
        "a receiver of the signals": _signalled,
    }


@contextmanager
def _observed_by(observer: Any) -> Iterator[None]:
    signals = import_module("locking.signals")
    signals.observe(observer)
    try:
        yield
    finally:
        signals.stop_observing(observer)


@contextmanager
def _logged() -> Iterator[None]:
    logger = logging.getLogger("locking")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
        logger.removeHandler(handler)


def _ignore(**_: Any) -> None:
    """Receive an event."""


@contextmanager
def _signalled() -> Iterator[None]:
    signals = import_module("locking.signals")
    ours = (signals.lock_acquired, signals.lock_released)
    for signal in ours:
        signal.connect(_ignore)
    try:
        yield
    finally:
        for signal in ours:
            signal.disconnect(_ignore)
        signals.flush()  # or the next slice would pay for it


def measure(rounds: int) -> dict[str, list[Cost]]:
    """Return what a pair costs in each round, by kind."""
    get_lock = import_module("locking").get_lock
    listening = kinds()
    for _ in range(WARM_UP):
        for listen in listening.values():
            _slice(get_lock, listen)
    gc.freeze()
    return _by_kind([_round(get_lock, listening) for _ in range(rounds)])


def _round(get_lock: Any, listening: dict[str, Listening]) -> dict[str, Cost]:
    times: dict[str, list[Cost]] = {name: [] for name in listening}
    for _ in range(SLICES):
        for name in random.sample(list(listening), len(listening)):
            times[name].append(_slice(get_lock, listening[name]))
    return {
        name: Cost(*(median(column) for column in zip(*costs, strict=True))) for name, costs in times.items()
    }


def _slice(get_lock: Any, listen: Listening) -> Cost:
    with listen():
        cpu, begun = time.thread_time(), time.perf_counter()
        for number in range(PAIRS):
            with get_lock(f"order:{number}", template="order:<id>"):
                pass
        wall, spent = time.perf_counter() - begun, time.thread_time() - cpu
    return Cost(wall / PAIRS * 1e6, spent / PAIRS * 1e6)


def _by_kind(rounds: list[dict[str, Cost]]) -> dict[str, list[Cost]]:
    return {name: [costs[name] for costs in rounds] for name in rounds[0]}


def table(figures: dict[str, list[Cost]]) -> Iterator[str]:
    """Yield the lines of the result: a pair beside an unobserved one of the same round."""
    yield "| observer | time, x without (quartiles) | CPU of the locking thread, x without |"
    yield "|---|---:|---:|"
    base = figures[UNOBSERVED]
    for name, costs in figures.items():
        pairs = list(zip(costs, base, strict=True))
        wall = spread([cost.wall / other.wall for cost, other in pairs])
        cpu = spread([cost.cpu / other.cpu for cost, other in pairs])
        yield f"| {name} | {wall.median:.2f} ({wall.low:.2f}-{wall.high:.2f}) | {cpu.median:.2f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    facts = describe_machine()
    with private_redis() as server, cores_awake():
        configure_django(server.url)
        figures = measure(arguments.rounds)
    print("\n".join(table(figures)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"circumstances": facts, "us_a_pair": figures}, indent=1))


if __name__ == "__main__":
    main()
