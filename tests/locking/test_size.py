"""`locking` stays as small as it is: a table of its rooms, their part, and a ceiling for each part.

A new feature's decision record names what goes for it. A ceiling above its goal is the part's present size
today; it comes down with the part, and never rises.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from tests import ROOT

LOCKING = ROOT / "locking"

PARTS: Final[dict[str, str]] = {
    "liveness.py": "liveness",
    "core": "core",
    "utils": "core",
    "keys": "core",
    "transactions": "core",
    "signals.py": "core",
    "exceptions.py": "core",
    "conf.py": "core",
    "apps.py": "core",
    "__init__.py": "core",
    "models.py": "core",
    "backends/base.py": "core",
    "backends/__init__.py": "core",
    "backends/capabilities.py": "core",
    "backends/waiters.py": "core",
    "backends/memory.py": "core",
    "backends/database": "database",
    "backends/redlock.py": "redlock",
    "backends/redis": "redis",
    "backends/redis/cluster.py": "redis cluster",
    "backends/redis/sentinel.py": "redis sentinel",
    "backends/redis/redisson_kinds.py": "redisson's kinds",
    "backends/zookeeper.py": "zookeeper and etcd",
    "backends/etcd.py": "zookeeper and etcd",
    "backends/queue.py": "zookeeper and etcd",
    "contrib/celery.py": "celery",
    "contrib/__init__.py": "core",
    "contrib": "contrib",
    "checks.py": "checks",
    "live_checks.py": "checks",
    "inspection": "inspection",
    "inspection/deadlocks.py": "deadlock search",
    "admin": "admin",
    "templatetags": "admin",
    "management": "command",
    "testing": "testing",
}
"""The part of each room; the longest path that fits counts."""

UNCOUNTED: Final = ("migrations", "testing/contract")

CEILINGS: Final = {
    "core": 7_150,
    "liveness": 300,
    "database": 1_391,
    "redlock": 518,
    "redis": 2_593,
    "redis cluster": 240,
    "redis sentinel": 78,
    "redisson's kinds": 112,
    "zookeeper and etcd": 1_509,  # goal: 1,400
    "celery": 285,
    "contrib": 598,
    "checks": 491,
    "inspection": 1_182,
    "deadlock search": 206,
    "admin": 595,
    "command": 744,
    "testing": 353,
}
MOST: Final = 18_345  # goal: 18,000
MOST_OPTIONS: Final = 14


def part_of(path: Path) -> str:
    """Return the part that a file belongs to."""
    name = path.relative_to(LOCKING).as_posix()
    rooms = [room for room in PARTS if name == room or name.startswith(f"{room}/")]
    assert rooms, f"{name} belongs to no part: name its room in PARTS"
    return PARTS[max(rooms, key=len)]


def sizes() -> dict[str, int]:
    """Return the lines of each part."""
    found = dict.fromkeys(PARTS.values(), 0)
    for path in LOCKING.rglob("*.py"):
        if not path.relative_to(LOCKING).as_posix().startswith(UNCOUNTED):
            found[part_of(path)] += len(path.read_text().splitlines())
    return found


@pytest.mark.parametrize("part", CEILINGS)
def test_a_part_is_no_larger_than_its_ceiling(part: str) -> None:
    """Whatever is added to a part, something goes from it."""
    assert sizes()[part] <= CEILINGS[part]


def test_every_part_has_a_ceiling() -> None:
    """A new room is put into the table."""
    assert set(sizes()) == set(CEILINGS)


def test_the_whole_is_no_larger_than_its_ceiling() -> None:
    """All parts together, without the contract and the migrations."""
    assert sum(sizes().values()) <= MOST


def test_the_decorator_has_few_options() -> None:
    """A new option names one that goes."""
    assert 1 < len(import_module("locking.transactions.decorator").OPTIONS) <= MOST_OPTIONS


if __name__ == "__main__":
    measured = sizes()
    for each, lines in measured.items():
        print(f"{each:20} {lines:6,} of {CEILINGS[each]:,}")
    too_large = [each for each, lines in measured.items() if lines > CEILINGS[each]]
    sys.exit(f"larger than allowed: {', '.join(too_large)}" if too_large else 0)
