"""Nemeses: what is done to hosts, servers and clients while operations run, and how it ends.

A nemesis is a generator function: what comes before its `yield` begins the fault, what comes after ends it.
The runner holds the fault in between, and makes the system whole afterwards.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from histories.hosts import CLIENTS, cut, heal
from histories.servers import Server, set_clock
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
    """What a nemesis may harm.

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

    def others(self, host: str) -> list[str]:
        """Return the hosts of the system's other servers."""
        return [each for each in self.system.hosts if each != host]

    def some_clients(self) -> tuple[list[str], list[str]]:
        """Return two clients' hosts, and the others."""
        chosen = self.chance.sample(CLIENTS, 2)
        return chosen, [host for host in CLIENTS if host not in chosen]


Nemesis = Callable[[Scene], Generator[None]]


def calm(_: Scene) -> Generator[None]:
    """Nothing happens."""
    yield


def leader_cut_off(scene: Scene) -> Generator[None]:
    """The leader and two clients are cut off from the other servers and clients: it is in the minority."""
    leader = scene.system.leader()
    here, there = scene.some_clients()
    cut([leader.host, *here], [*scene.others(leader.host), *there])
    with _Promotion(scene, leader):
        yield
    heal()


def follower_cut_off(scene: Scene) -> Generator[None]:
    """Another server and two clients are cut off; the leader is in the majority."""
    follower = scene.system.follower()
    here, there = scene.some_clients()
    cut([follower.host, *here], [*scene.others(follower.host), *there])
    yield
    heal()


def one_way(scene: Scene) -> Generator[None]:
    """What the leader sends to the other servers and two clients is dropped; what they send arrives."""
    leader = scene.system.leader()
    cut([leader.host], [*scene.others(leader.host), *scene.some_clients()[0]], one_way=True)
    with _Promotion(scene, leader):
        yield
    heal()


def bridge(scene: Scene) -> Generator[None]:
    """Two halves don't see each other; one server, not the leader, sees both."""
    leader = scene.system.leader()
    between = scene.system.follower().host
    rest = [host for host in scene.others(leader.host) if host != between]
    here, there = scene.some_clients()
    cut([leader.host, *here], [*rest, *there])
    yield
    heal()


def flapping(scene: Scene) -> Generator[None]:
    """The leader's network comes and goes every few hundred milliseconds."""
    leader, stop = scene.system.leader(), threading.Event()

    def flap() -> None:
        while not stop.is_set():
            cut([leader.host], [*scene.others(leader.host), *CLIENTS])
            stop.wait(scene.chance.uniform(0.1, 1.0))
            heal()
            stop.wait(scene.chance.uniform(0.1, 0.6))

    thread = threading.Thread(target=flap)
    thread.start()
    yield
    stop.set()
    thread.join()
    heal()


def killed_server(scene: Scene) -> Generator[None]:
    """kill -9 of the leader."""
    leader = scene.system.leader()
    leader.kill()
    with _Promotion(scene, leader):
        yield


def killed_client(scene: Scene) -> Generator[None]:
    """kill -9 of one client and then another, each between its read and its write; both are started again."""
    for client in _in_sections(scene):
        client.kill()
    yield


def frozen_server(scene: Scene) -> Generator[None]:
    """SIGSTOP of the leader for longer than the lease, then SIGCONT."""
    leader = scene.system.leader()
    leader.freeze()
    with _Promotion(scene, leader):
        yield
    leader.thaw()


def frozen_client(scene: Scene) -> Generator[None]:
    """SIGSTOP of two clients for longer than the lease, each between its read and its write."""
    frozen = []
    for client in _in_sections(scene):
        client.freeze()
        frozen.append(client)
    yield
    for client in frozen:
        client.thaw()


def frozen_holder(scene: Scene) -> Generator[None]:
    """SIGSTOP of a client that holds the lock, for longer than the lease, then SIGCONT."""
    host = _next_call(scene.log, '"held", "key": "lock')
    holders = [client for client in scene.clients if client.host == host]
    for client in holders:
        client.freeze()
    yield
    for client in holders:
        client.thaw()


def clock(scene: Scene) -> Generator[None]:
    """The wall clocks of the leader and of two clients' hosts are an hour off."""
    off = scene.chance.choice([-HOUR, HOUR])
    hosts = [scene.system.leader().host, *scene.some_clients()[0]]
    for host in hosts:
        set_clock(host, off)
    yield
    for host in hosts:
        set_clock(host, 0)


def failover(scene: Scene) -> Generator[None]:
    """The leader is killed in the middle of a hand-over that no follower has heard of."""
    leader = scene.system.leader()
    cut([leader.host], scene.others(leader.host), one_way=True)
    _next_call(scene.log, '"action": "release"')
    leader.kill()
    heal()
    with _Promotion(scene, leader):
        yield


def full_disk(scene: Scene) -> Generator[None]:
    """The leader's disk has no byte free."""
    disk = scene.system.leader().disk
    disk.fill()
    yield
    disk.clear()


def mix(scene: Scene) -> Generator[None]:
    """Two of the others at once."""
    chosen = scene.chance.sample([leader_cut_off, one_way, flapping, clock, frozen_client, killed_client], 2)
    running = [nemesis(scene) for nemesis in chosen]
    for one in running:
        next(one)
    yield
    for one in running:
        next(one, None)
    heal()


NEMESES: Final[dict[str, Nemesis]] = {
    "calm": calm,
    "leader-cut-off": leader_cut_off,
    "follower-cut-off": follower_cut_off,
    "one-way": one_way,
    "bridge": bridge,
    "flapping": flapping,
    "killed-server": killed_server,
    "killed-client": killed_client,
    "frozen-server": frozen_server,
    "frozen-client": frozen_client,
    "frozen-holder": frozen_holder,
    "clock": clock,
    "failover": failover,
    "full-disk": full_disk,
    "mix": mix,
}


def applies(name: str, system: System) -> bool:
    """Whether a nemesis differs from the others on this system: a bridge needs a third server."""
    servers = len(system.hosts)
    needed = {"follower-cut-off": 2, "failover": 2, "bridge": 3}
    return servers >= needed.get(name, 1)


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
