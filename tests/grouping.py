"""Tests of the same servers stay together: one worker starts them, once, and the longest work is begun first.

All other tests are dealt out one by one. A group that is missing here, or has a test too many, costs time and
nothing else.
"""

import pytest

# The longest first. A test belongs to the first whose name is in its parameters, or that has one of its fixtures.
GROUPS = {
    "etcd": {"etcd_location", "on_etcd"},
    "zookeeper": {"zookeeper_location"},
    "mariadb": {"mariadb_socket"},
    "redisson": {"shared_site"},
    "browser": {"server"},
    "celery": {"pool"},
    "installed": {"scratch"},
    "topologies": {"shared_cluster"},
    "redis-cluster": {"cluster_locks"},
    "redis-sentinel": {"sentinel_locks"},
    "segments": {"nodes"},
    "deaths": {"warm"},
    "wheel": {"wheel"},
    "redlock": {"redlock_location"},
}


def group(items: list[pytest.Item]) -> None:
    """Mark the tests with their groups, and put them in the order in which they are begun."""
    places = {item: _place(item) for item in items}
    names = list(GROUPS)
    for item, place in places.items():
        if place < len(names):
            item.add_marker(pytest.mark.xdist_group(names[place]))
    items.sort(key=places.__getitem__)


def _place(item: pytest.Item) -> int:
    """The place of its group in the table; tests of none come last."""
    parameters, fixtures = item.name.partition("[")[2], set(getattr(item, "fixturenames", ()))
    places = (
        place
        for place, (name, needed) in enumerate(GROUPS.items())
        if name in parameters or needed & fixtures
    )
    return next(places, len(GROUPS))
