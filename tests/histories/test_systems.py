"""Lock servers on hosts: a system without its leader comes back whole."""

import shutil
from multiprocessing import get_context

import pytest

from histories import hosts
from histories.systems import SYSTEMS

REASON = hosts.obstacle()
NEEDS = dict.fromkeys(("advisory", "rows", "rowlock"), "postgres") | {"zookeeper": "java", "etcd": "etcd"}


def lose_its_leader(name: str) -> None:
    """Start the system, kill its leader, restore it; for a process that may enter a host for good."""
    hosts.enter("control")
    system = SYSTEMS[name]()
    try:
        system.start()
        leader = system.leader()
        leader.kill()
        system.promote(leader)
        system.restore()
        assert system.is_whole()
        assert leader.lives
    finally:
        system.stop()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.whole) for name in SYSTEMS])
def test_a_system_comes_back_after_its_leader_was_killed(name):
    """Each system elects, promotes or restarts, and is whole afterwards."""
    program = NEEDS.get(name, "redis-server")
    if shutil.which(program) is None:
        pytest.skip(f"no {program} on PATH")
    hosts.up()
    try:
        process = get_context("spawn").Process(target=lose_its_leader, args=(name,))
        process.start()
        process.join(100)
        assert process.exitcode == 0
    finally:
        hosts.down()
