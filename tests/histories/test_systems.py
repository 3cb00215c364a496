"""Lock servers on hosts: a system without its leader comes back whole."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from multiprocessing import get_context

import pytest
from redis.exceptions import ResponseError

from histories import hosts, servers
from histories.servers import until
from histories.systems import SYSTEMS
from histories.systems.redis import RedisServer, Sentinel

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


def test_the_children_of_a_server_are_found_to_be_frozen_with_it():
    """PostgreSQL answers from a process per connection: its first process alone would freeze nothing."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert servers._children(parent.pid) == [child]
        os.kill(child, signal.SIGKILL)


def refusal(server: RedisServer) -> str:
    """Return with which word the server refuses a write, or nothing if it takes it."""
    try:
        server.ask("SET", "asked", "1")
    except ResponseError as error:
        return str(error).split()[0]
    return ""


def fill_its_disk(name: str, expected: str) -> None:
    """Fill the master's disk until another one leads, clear it, and see what the old master says then."""
    hosts.enter("control")
    system = SYSTEMS[name]()
    assert isinstance(system, Sentinel)
    try:
        system.start()
        old = system.leader()
        old.disk.fill()
        until(lambda: refusal(old) == "MISCONF", "a master that can't write its log")
        until(lambda: system.leader() is not old and not old.replicas(), "another master")
        old.disk.clear()
        until(lambda: refusal(old) != "MISCONF", "a master that can write its log again")
        assert (refusal(old), old.role(), system.leader().role()) == (expected, "master", "master")
    finally:
        system.stop()


def in_a_process(target: Callable[..., None], *arguments: str) -> int | None:
    """Run it where it may enter a host for good, and return the exit status."""
    hosts.up()
    try:
        process = get_context("spawn").Process(target=target, args=arguments)
        process.start()
        process.join(100)
        return process.exitcode
    finally:
        hosts.down()


@pytest.mark.whole
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on PATH")
@pytest.mark.parametrize(("name", "said"), [("sentinel", ""), ("guarded", "NOREPLICAS")])
def test_a_master_whose_disk_was_full_takes_writes_beside_the_new_one_unless_it_needs_replicas(name, said):
    """To the Sentinels an error is no answer; they demote the old master only seconds after it is back."""
    assert in_a_process(fill_its_disk, name, said) == 0


def break_its_log() -> None:
    """Leave half a command in the middle of the append-only file, and start the server again."""
    hosts.enter("control")
    server = RedisServer("n1")
    try:
        server.ask("SET", "before", "1")
        server.kill()
        (log,) = server.disk.path.glob("appendonlydir/*.incr.aof")
        whole = b"*3\r\n$3\r\nSET\r\n$5\r\nafter\r\n$1\r\n1\r\n"
        with log.open("ab") as file:
            file.write(whole[:20] + whole)
        server.start()
        until(lambda: server.ask("PING"), "a server that serves again")
        assert (server.ask("GET", "before"), server.ask("GET", "after")) == ("1", None)
    finally:
        server.remove()


@pytest.mark.whole
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.skipif(shutil.which("redis-check-aof") is None, reason="no redis-check-aof on PATH")
def test_a_redis_whose_log_was_broken_by_a_full_disk_starts_again():
    """Redis refuses to load such a file; the system would never be whole again."""
    assert in_a_process(break_its_log) == 0


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.whole) for name in SYSTEMS])
def test_a_system_comes_back_after_its_leader_was_killed(name):
    """Each system elects, promotes or restarts, and is whole afterwards."""
    program = NEEDS.get(name, "redis-server")
    if shutil.which(program) is None:
        pytest.skip(f"no {program} on PATH")
    assert in_a_process(lose_its_leader, name) == 0
