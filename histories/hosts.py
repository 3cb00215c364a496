"""Hosts on one machine: network namespaces on a bridge, and the partitions between them.

    python -m histories.hosts up                      make the hosts
    python -m histories.hosts cut n1,c1 n2,n3         drop every packet between the two sides
    python -m histories.hosts cut n1 n2 --one-way     drop those from n1 to n2 alone
    python -m histories.hosts heal                    end all partitions
    python -m histories.hosts down                    remove the hosts, their processes and their disks

The bridge is in a namespace of its own, so no packet leaves for the machine's own network. A cut is a
neighbor entry that leads nowhere: the sender hears no error, as with a broken switch, and it needs neither
netfilter nor netem in the kernel. Two runs at a time need names of their own: HISTORIES=second.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

PREFIX: Final = os.environ.get("HISTORIES", "holdfast") + "-"
SWITCH: Final = "switch"
SERVERS: Final = ("n1", "n2", "n3", "n4", "n5")
CLIENTS: Final = ("c1", "c2", "c3", "c4")
HOSTS: Final = ("control", "judge", *SERVERS, *CLIENTS)
"""`control` is where the runner is, `judge` has the guarded register; neither is ever cut off."""

NOWHERE: Final = "02:00:00:00:de:ad"
CLONE_NEWNET: Final = 0x40000000
HOME: Final = Path(f"/tmp/{PREFIX}histories")  # noqa: S108 - root's; short, as the paths of Unix sockets must be

_CLAIM: Final[list[int]] = []
"""The descriptor of the file whose lock says that these hosts are this process's."""


class HostsError(Exception):
    """The hosts can't be made here; the message says why."""


def obstacle() -> str | None:
    """Return why hosts can't be made here, or None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no `ip` on PATH (Debian: iproute2)"
    trial = f"{PREFIX}trial{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", trial], capture_output=True, check=False)
    return f"this kernel makes no network namespaces: {made.stderr.strip()}" if made.returncode else None


def address(host: str) -> str:
    """Return the host's IP address."""
    return f"10.79.0.{10 + HOSTS.index(host)}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _batch(host: str, lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    command = ["ip", "-n", PREFIX + host, "-batch", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(f"{text}: {done.stderr.strip()}")


def up() -> None:
    """Make all hosts; those that an earlier, killed run left are removed first."""
    if reason := obstacle():
        raise HostsError(reason)
    _claim()
    _remove()
    _ip("netns", "add", PREFIX + SWITCH)
    switch("link add bridge up type bridge")
    for host in HOSTS:
        namespace = PREFIX + host
        _ip("netns", "add", namespace)
        ends = ["eth0", "netns", namespace, "type", "veth", "peer", "name", host, "netns", PREFIX + SWITCH]
        _ip("link", "add", *ends)
        switch(f"link set {host} master bridge up")
        _ip("-n", namespace, "address", "add", f"{address(host)}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        _ip("-n", namespace, "link", "set", "lo", "up")


def _claim() -> None:
    """Keep other runs from removing these hosts, until `down` or the end of this process."""
    if _CLAIM:
        return
    file = os.open(f"/run/{PREFIX}histories.lock", os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise HostsError(f"another run has the hosts {PREFIX}*: wait, or set HISTORIES to a name") from None
    _CLAIM.append(file)


def down() -> None:
    """Remove all hosts with whatever runs in them, and the disks of their servers."""
    _remove()
    while _CLAIM:
        os.close(_CLAIM.pop())


def _remove() -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    namespaces = [line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX)]
    for namespace in namespaces:
        while living := _processes_in(namespace):
            for process in living:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
    for namespace in namespaces:
        _ip("netns", "delete", namespace)
    for disk in sorted(HOME.glob("disks/*")):
        subprocess.run(["umount", "--lazy", str(disk)], capture_output=True, check=False)
    shutil.rmtree(HOME, ignore_errors=True)


def _processes_in(namespace: str) -> list[int]:
    """Return the processes in a namespace, but for this one and the one that lists them."""
    with subprocess.Popen(["ip", "netns", "pids", namespace], stdout=subprocess.PIPE, text=True) as listing:
        found = (listing.stdout.read() if listing.stdout else "").split()
    return [int(pid) for pid in found if int(pid) not in (os.getpid(), listing.pid)]


def enter(host: str) -> None:
    """Have the calling thread, and what it starts, use the network of `host`."""
    with Path(f"/run/netns/{PREFIX}{host}").open() as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise HostsError(f"can't enter {host}: {os.strerror(ctypes.get_errno())}")


def command_on(host: str, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` on `host`, where it ends with the process that started it."""
    return ["ip", "netns", "exec", PREFIX + host, "setpriv", "--pdeathsig", "KILL", *command]


def cut(sources: Iterable[str], targets: Iterable[str], *, one_way: bool = False) -> None:
    """Drop what the sources send to the targets and, unless `one_way`, the other way round."""
    sources, targets = list(sources), list(targets)
    for source in sources:
        others = [target for target in targets if target != source]
        _batch(
            source, [f"neigh replace {address(to)} lladdr {NOWHERE} dev eth0 nud permanent" for to in others]
        )
    if not one_way:
        cut(targets, sources, one_way=True)


def heal() -> None:
    """End every partition."""
    for host in HOSTS:
        _batch(host, ["neigh flush dev eth0 nud permanent"])


def switch(*lines: str) -> None:
    """Run lines of `ip -batch` on the switch, whose ends of the cables have the hosts' names."""
    _batch(SWITCH, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command of the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["up", "cut", "heal", "down"])
    parser.add_argument("sides", nargs="*", help="two lists of hosts, commas between them, for `cut`")
    parser.add_argument("--one-way", action="store_true")
    given = parser.parse_args(arguments)
    if reason := obstacle():
        raise SystemExit(f"histories: {reason}")
    if given.command == "cut":
        if len(given.sides) != 2 or not set(",".join(given.sides).split(",")) <= set(HOSTS):
            parser.error(f"cut needs two lists of hosts from {', '.join(HOSTS)}")
        cut(*(side.split(",") for side in given.sides), one_way=given.one_way)
    else:
        try:
            {"up": up, "heal": heal, "down": down}[given.command]()
        except HostsError as error:
            raise SystemExit(f"histories: {error}") from None


if __name__ == "__main__":
    main()
