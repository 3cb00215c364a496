"""Nemeses: what is done to hosts, servers and clients while operations run, and how it ends.

A nemesis is a generator function: what comes before its `yield` begins the fault, what comes after ends it.
It yields what it chose, for the log. The runner holds the fault in between, and makes the system whole
afterwards.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from histories.hosts import CLIENTS, cut, heal
from histories.servers import Server, set_clock, until
from histories.slow import slowed
from histories.systems import System

HOUR: Final = 3600
DETECTION: Final = 1.5
"""Seconds after which the runner promotes a standby, as a failover manager would."""


class Frozen(Protocol):
    """What can be killed and frozen: a server or a client."""

    host: str

    def kill(self) -> None:
        """End it at once."""

    def freeze(self) -> None:
        """Stop it; its sockets stay open."""

    def thaw(self) -> None:
        """Let it go on."""


@dataclass
class Scene:
    """What a nemesis may harm, at the beginning of one fault.

    Attributes:
        system: whose servers.
        clients: the processes that run operations.
        chance: the seed's random numbers.
        log: the folder of the clients' logs.
    """

    system: System
    clients: Sequence[Frozen]
    chance: random.Random
    log: Path

    def __post_init__(self) -> None:
        self.leader: Server = until(self.system.leader, "a leader")
        self.follower = next((each for each in self.system.members if each is not self.leader), self.leader)

    def others(self, host: str) -> list[str]:
        """Return the hosts of the system's other servers."""
        return [each for each in self.system.hosts if each != host]

    def some_clients(self) -> tuple[list[str], list[str]]:
        """Return two clients' hosts, and the others."""
        chosen = self.chance.sample(CLIENTS, 2)
        return chosen, [host for host in CLIENTS if host not in chosen]


Nemesis = Callable[[Scene], Generator[str]]


def calm(_: Scene) -> Generator[str]:
    """Nothing happens."""
    yield "nothing"


def leader_cut_off(scene: Scene) -> Generator[str]:
    """The leader and two clients are cut off from the other servers and clients: it is in the minority."""
    leader = scene.leader
    here, there = scene.some_clients()
    with _Promotion(scene, leader):
        yield _split([leader.host, *here], [*scene.others(leader.host), *there])
    heal()


def follower_cut_off(scene: Scene) -> Generator[str]:
    """Another server and two clients are cut off; the leader is in the majority."""
    follower = scene.follower
    here, there = scene.some_clients()
    yield _split([follower.host, *here], [*scene.others(follower.host), *there])
    heal()


def one_way(scene: Scene) -> Generator[str]:
    """What the leader sends to the other servers and two clients is dropped; what they send arrives."""
    leader = scene.leader
    deaf = [*scene.others(leader.host), *scene.some_clients()[0]]
    cut([leader.host], deaf, one_way=True)
    with _Promotion(scene, leader):
        yield f"{leader.host} to {_names(deaf)}"
    heal()


def bridge(scene: Scene) -> Generator[str]:
    """Two halves don't see each other; one server, not the leader, sees both."""
    leader = scene.leader
    between = scene.follower.host
    rest = [host for host in scene.others(leader.host) if host != between]
    here, there = scene.some_clients()
    yield _split([leader.host, *here], [*rest, *there])
    heal()


def flapping(scene: Scene) -> Generator[str]:
    """The leader's network comes and goes every few hundred milliseconds."""
    leader, stop = scene.leader, threading.Event()

    def flap() -> None:
        while not stop.is_set():
            cut([leader.host], [*scene.others(leader.host), *CLIENTS])
            stop.wait(scene.chance.uniform(0.1, 1.0))
            heal()
            stop.wait(scene.chance.uniform(0.1, 0.6))

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield leader.host
    finally:
        stop.set()
        thread.join()
        heal()


def slow_network(scene: Scene) -> Generator[str]:
    """What the leader and two clients send and receive is late; one packet in twenty is lost."""
    hosts = [scene.leader.host, *scene.some_clients()[0]]
    with ExitStack() as cables:
        for host in hosts:
            cables.enter_context(slowed(host, scene.chance))
        yield _names(hosts)


def killed_server(scene: Scene) -> Generator[str]:
    """kill -9 of the leader."""
    leader = scene.leader
    leader.kill()
    with _Promotion(scene, leader):
        yield leader.name


def killed_client(scene: Scene) -> Generator[str]:
    """kill -9 of one client and then another, each between its read and its write; both are started again."""
    killed = []
    for client in _in_sections(scene):
        client.kill()
        killed.append(client.host)
    yield _names(killed)


def frozen_server(scene: Scene) -> Generator[str]:
    """SIGSTOP of the leader for longer than the lease, then SIGCONT."""
    leader = scene.leader
    leader.freeze()
    with _Promotion(scene, leader):
        yield leader.name
    leader.thaw()


def frozen_client(scene: Scene) -> Generator[str]:
    """SIGSTOP of two clients for longer than the lease, each between its read and its write."""
    frozen = []
    for client in _in_sections(scene):
        client.freeze()
        frozen.append(client)
    yield _names(client.host for client in frozen)
    for client in frozen:
        client.thaw()


def frozen_holder(scene: Scene) -> Generator[str]:
    """SIGSTOP of a client that holds the lock, for longer than the lease, then SIGCONT."""
    held = '"event": "wrote"' if scene.system.abilities.in_transaction else '"held", "key": "lock'
    host = _next_call(scene.log, held)
    holders = [client for client in scene.clients if client.host == host]
    for client in holders:
        client.freeze()
    yield _names(client.host for client in holders)
    for client in holders:
        client.thaw()


def clock(scene: Scene) -> Generator[str]:
    """The wall clocks of the leader and of two clients' hosts are an hour off."""
    off = scene.chance.choice([-HOUR, HOUR])
    hosts = [scene.leader.host, *scene.some_clients()[0]]
    for host in hosts:
        set_clock(host, off)
    yield f"{off:+} s on {_names(hosts)}"
    for host in hosts:
        set_clock(host, 0)


def failover(scene: Scene) -> Generator[str]:
    """The leader is killed in the middle of a hand-over that no follower has heard of."""
    leader = scene.leader
    cut([leader.host], scene.others(leader.host), one_way=True)
    _next_call(scene.log, '"action": "release"')
    leader.kill()
    heal()
    with _Promotion(scene, leader):
        yield leader.name


def full_disk(scene: Scene) -> Generator[str]:
    """The leader's disk has no byte free."""
    server = scene.leader
    server.disk.fill()
    yield server.name
    server.disk.clear()


OF_NETWORK: Final = (leader_cut_off, follower_cut_off, one_way, bridge, flapping, slow_network)
OF_SERVERS: Final = (killed_server, frozen_server, full_disk, clock)
OF_CLIENTS: Final = (killed_client, frozen_client, frozen_holder)


def mix(scene: Scene) -> Generator[str]:
    """A fault of the network and one of processes at once, drawn each time."""
    drawn = [
        scene.chance.choice([one for one in kind if applies(_name(one), scene.system)])
        for kind in (OF_NETWORK, (*OF_SERVERS, *OF_CLIENTS))
    ]
    running = [nemesis(scene) for nemesis in drawn]
    yield " + ".join(f"{_name(one)} ({next(fault)})" for one, fault in zip(drawn, running, strict=True))
    for fault in running:
        next(fault, None)
    heal()


def _name(nemesis: Nemesis) -> str:
    return nemesis.__name__.replace("_", "-")


NEMESES: Final[dict[str, Nemesis]] = {
    _name(one): one for one in (calm, *OF_CLIENTS, *OF_NETWORK, *OF_SERVERS, failover, mix)
}


def applies(name: str, system: System) -> bool:
    """Whether a nemesis differs from the others on this system: a bridge needs a third server."""
    servers = len(system.hosts)
    needed = {"follower-cut-off": 2, "failover": 2, "bridge": 3}
    return servers >= needed.get(name, 1)


def _names(hosts: Iterable[str]) -> str:
    return ", ".join(hosts)


def _split(here: Sequence[str], there: Sequence[str]) -> str:
    """Cut both sides off from each other, and return that in words."""
    cut(here, there)
    return f"{_names(here)} from {_names(there)}"


class _Promotion:
    """Promotes a standby while the fault lasts, where the servers don't elect a leader themselves."""

    def __init__(self, scene: Scene, lost: Server) -> None:
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._promote, args=(scene, lost))

    def _promote(self, scene: Scene, lost: Server) -> None:
        if not self.stop.wait(DETECTION):
            scene.system.promote(lost)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()


def _in_sections(scene: Scene) -> Iterator[Frozen]:
    """Wait until a client is between its read and its write, and return it; then another one, elsewhere."""
    able = scene.system.abilities
    kinds = ["confirmed"] * 2 if able.in_transaction else ["bare", "fenced" if able.fenced else "confirmed"]
    done: list[str] = []
    for kind in kinds:
        host = _next_call(scene.log, f'"section", "key": "{kind}', done)
        client = next((one for one in scene.clients if one.host == host), None)
        if client is not None:
            done.append(client.host)
            yield client


def _next_call(folder: Path, text: str, but: Sequence[str] = (), within: float = 3.0) -> str | None:
    """Wait until a client's log has a new line with `text`, and return its host; None = not in time."""
    ends = {path: path.stat().st_size for path in folder.glob("c*.jsonl") if path.stem not in but}
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        for path, end in ends.items():
            with suppress(OSError), path.open("rb") as file:
                file.seek(end)
                new = file.read()
                ends[path] += len(new)
                if text.encode() in new:
                    return path.stem
        time.sleep(0.001)
    return None
