"""Tests of the same servers stay together: one worker starts them, once, and the longest work is begun first.

All other tests are dealt out one by one. A group that is missing here, or has a test too many, costs time and
nothing else. (`--dist loadgroup` and its marks do nothing under pytest 9.2: pytest-xdist's issue 1386.)
"""

import re

from xdist.scheduler import LoadScopeScheduling

# The longest first. A test belongs to the first that is found in its address.
GROUPS = [
    r"/histories/",  # they make the same hosts
    r"\[.*etcd",
    r"\[.*zookeeper|/test_curator",
    r"\[.*mariadb",
    r"/redisson/",
    r"/browser/|/test_http_rush",
    r"/contrib/worker/",
    r"/scratch/|/test_wheel|/test_walkthrough",
    r"\[.*redis-cluster|/test_cluster",
    r"\[.*redis-sentinel|/test_sentinel",
    r"/test_deaths",
    r"/test_segments_in_a_cluster",
    r"/test_read_replica",
    r"/test_partitions",
    r"/test_behind_pgbouncer",
    r"\[.*redlock",
]


# Single tests of many seconds: dealt out before the others, so that none of them is left for the end.
LONG = (
    r"/test_(embedded|interleavings|promise_mutants|oversell_command|runs|race|async_reserve_crash|servers|run|history"
    r"|event_loops|ensembles|security|single|locks_run|metrics|serve|redlock|sound_strategies|on_a_redis_cluster)\.py"
)


def place(test: str) -> int:
    """Return the place of a test's group in the table; then come the long tests, then the others."""
    order = (i for i, pattern in enumerate([*GROUPS, LONG]) if re.search(pattern, test))
    return next(order, len(GROUPS) + 1)


class Scheduling(LoadScopeScheduling):
    """Deals out whole groups, then single tests."""

    def _split_scope(self, nodeid: str) -> str:
        return [*GROUPS, nodeid, nodeid][place(nodeid)]
