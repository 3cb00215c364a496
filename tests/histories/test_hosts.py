"""Hosts in network namespaces, and the partitions between them."""

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from histories import hosts, slow

REASON = hosts.obstacle()
PORT = 7979
ASK = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(sys.argv[2].encode(), (sys.argv[1], 7979))
"""

needs_hosts = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def network() -> Iterator[None]:
    hosts.up()
    try:
        yield
    finally:
        hosts.down()


def listening_on(host: str) -> socket.socket:
    """Return a socket on `host`; the thread that opens it enters the host for good."""
    opened: list[socket.socket] = []

    def listen() -> None:
        hosts.enter(host)
        opened.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        opened[0].bind((hosts.address(host), PORT))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    return opened[0]


def flood(source: str, target: str, packets: int) -> None:
    """Send many packets from one host to the other."""
    send = ASK + f"    for _ in range({packets - 1}): sender.sendto(b'more', (sys.argv[1], 7979))\n"
    command = hosts.command_on(source, [sys.executable, "-c", send, hosts.address(target), "more"])
    subprocess.run(command, check=True)


def arrives(source: str, target: str) -> bool:
    """Send a packet from one host to the other, then one from `control`, which always arrives."""
    with listening_on(target) as listener:
        for sender, text in ((source, "asked"), ("control", "last")):
            command = hosts.command_on(sender, [sys.executable, "-c", ASK, hosts.address(target), text])
            subprocess.run(command, check=True)
        listener.settimeout(20)
        return listener.recv(16) == b"asked"


@needs_hosts
@pytest.mark.usefixtures("network")
def test_a_cut_holds_in_the_directions_that_it_names_until_it_is_healed():
    """One way drops one direction alone; the other form drops both."""
    assert arrives("n1", "n2")
    hosts.cut(["n1"], ["n2"], one_way=True)
    assert (arrives("n1", "n2"), arrives("n2", "n1"), arrives("n1", "n3")) == (False, True, True)
    hosts.heal()
    hosts.cut(["n1", "c1"], ["n2", "n3"])
    assert (arrives("n2", "n1"), arrives("n3", "c1"), arrives("n1", "c1")) == (False, False, True)
    hosts.heal()
    assert arrives("n2", "n1")


@needs_hosts
@pytest.mark.usefixtures("network")
def test_removing_the_hosts_ends_what_runs_in_them():
    """A runner that was killed leaves its hosts: the next `up` or `down` removes them and their processes."""
    with subprocess.Popen(["ip", "netns", "exec", f"{hosts.PREFIX}n1", "sleep", "60"]) as left:
        try:
            while left.pid not in hosts._processes_in(f"{hosts.PREFIX}n1"):
                assert left.poll() is None
            hosts.down()
            assert left.wait(20) == -9
        finally:
            with suppress(ProcessLookupError):
                left.kill()
    assert (
        hosts.PREFIX not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    )


@needs_hosts
@pytest.mark.usefixtures("network")
def test_a_slow_network_delays_what_it_does_not_lose():
    """Of 200 packets most arrive, none before the least delay; afterwards each arrives at once."""
    assert arrives("n2", "n1")  # from then on n2 knows its address
    with listening_on("n1") as listener:
        listener.settimeout(2)
        with slow.slowed("n1", random.Random(35)):
            sent = time.monotonic()
            flood("n2", "n1", 200)
            arrived, first = 0, 0.0
            with suppress(TimeoutError):
                while listener.recv(16):
                    first, arrived = first or time.monotonic(), arrived + 1
        assert 100 <= arrived < 200
        assert first - sent >= slow.DELAY[0]
    assert arrives("n2", "n1")


@needs_hosts
@pytest.mark.usefixtures("network")
def test_a_second_run_is_refused_while_the_hosts_are_in_use():
    """It would remove them, and end what runs there."""
    second = subprocess.run(
        [sys.executable, "-m", "histories.hosts", "up"], capture_output=True, text=True, check=False
    )
    assert second.returncode != 0
    assert "another run has the hosts" in second.stderr
    assert "Traceback" not in second.stderr


def test_without_root_the_command_says_so(monkeypatch):
    """The one command refuses with the reason instead of a trace."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="need root"):
        hosts.main(["up"])
