"""One thread takes and releases an uncontended lock: what a lock costs when all is well.

A round has two parts. In the first, each peer's requests are counted over one long block. In the second, the
time is taken in slices of a few milliseconds, the peers in turns: whatever else the machine does meanwhile
falls on all of them, and the median slice hardly sees it.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from benchmarks.peers import Peer, Section
from benchmarks.server import Server, Work

Record = dict[str, float | str | int]
NEW_KEY, SAME_KEY = "new key", "same key"
KINDS = (NEW_KEY, SAME_KEY)
LEASE = 30.0
WARM_UP = 30
SLICES = 8


def measure(
    server: Server, peers: Sequence[Peer], rounds: int, pairs: int, progress: Callable[[str], None]
) -> list[Record]:
    """Return one record for each round, peer and kind of key; every slice has its own order of peers."""
    sections = {peer.name: peer.open(server.url, LEASE) for peer in peers}
    for section in sections.values():
        time_pairs(section, [f"warm:{number}" for number in range(WARM_UP)])
    gc.freeze()
    records: list[Record] = []
    for number in range(rounds):
        progress(f"uncontended, round {number + 1} of {rounds}")
        counted = {
            (name, kind): _count(server, sections[name], kind, pairs) for name in sections for kind in KINDS
        }
        timed: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in counted}
        for name, kind, names in slices(server, list(sections), number, pairs):
            timed[name, kind].append(time_pairs(sections[name], names))
        records += [record(number, key, timed[key], counted[key], pairs) for key in counted]
    return records


def slices(server: Server, peers: list[str], round_: int, pairs: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield peer, kind of key and the names of each slice of a round."""
    each = pairs // SLICES
    for number in range(SLICES):
        server.clear()
        for peer in random.sample(peers, len(peers)):
            for kind in KINDS:
                yield (
                    peer,
                    kind,
                    names_of(kind, each, f"{peer}:{round_}:{number}" if kind == NEW_KEY else peer),
                )


def names_of(kind: str, count: int, label: str) -> list[str]:
    """Return the names of one slice: all different from any name used before, or all the same."""
    return [f"lock:{label}:{number if kind == NEW_KEY else 'same'}" for number in range(count)]


def nothing() -> None:
    """The section of an uncontended lock is empty."""


def time_pairs(section: Section, names: list[str]) -> tuple[float, float]:
    """Return the seconds on the clock and of this process that one pair for each name takes in all."""
    cpu, begun = time.process_time(), time.perf_counter()
    for name in names:
        section(name, nothing)
    return time.perf_counter() - begun, time.process_time() - cpu


def _count(server: Server, section: Section, kind: str, pairs: int) -> Work:
    server.clear()
    names = names_of(kind, pairs, "counted")
    before = server.work()
    for name in names:
        section(name, nothing)
    return server.work().since(before)


def record(
    number: int, key: tuple[str, str], times: list[tuple[float, float]], work: Work, pairs: int
) -> Record:
    """Return the figures of one acquisition and release in one round."""
    each = pairs // SLICES
    return {
        "round": number,
        "peer": key[0],
        "key": key[1],
        "wall_us": median(wall for wall, _ in times) / each * 1e6,
        "client_cpu_us": median(cpu for _, cpu in times) / each * 1e6,
        "redis_cpu_us": work.cpu / pairs * 1e6,
        "requests": work.requests / pairs,
        "commands": work.commands / pairs,
    }
