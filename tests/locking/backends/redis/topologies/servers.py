"""Real Redis servers on loopback ports: alone, with a replica and Sentinels, as a cluster."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from config.embedded import redis_program, redis_version
from tests.support import processes
from tests.support.processes import ServerProcess

PATIENCE = 20.0
"""Seconds after which a condition that never comes fails its test."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return what `condition` returns as soon as that is true, and an error of Redis means not yet."""
    return processes.until(condition, what, within=PATIENCE, despite=(redis.RedisError,))


def free_port() -> int:
    """Return a free port; the one 10,000 further up is free as well, for a cluster node's bus."""
    while True:
        with socket.socket() as bus, socket.socket() as server:
            bus.bind(("127.0.0.1", 0))
            port: int = bus.getsockname()[1] - 10_000
            with contextlib.suppress(OSError):
                server.bind(("127.0.0.1", port))
                return port


class Server(ServerProcess):
    """One redis-server process in a folder of its own."""

    def __init__(
        self, folder: Path, options: Mapping[str, object], *, port: int, sentinel: bool = False
    ) -> None:
        folder.mkdir(parents=True)
        self.port = port
        config = folder / "redis.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        super().__init__(folder, [str(redis_program()), str(config), *(["--sentinel"] if sentinel else [])])

    @property
    def url(self) -> str:
        """The server's address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, database: int = 0) -> redis.Redis:
        """A plain client, for looking behind the scenes."""
        return redis.Redis(port=self.port, db=database, socket_timeout=5)

    def ask(self, *command: object) -> Any:
        """Send one command."""
        with self.client() as client:
            return client.execute_command(*command)


def options_for(port: int, **more: object) -> dict[str, object]:
    """Return the configuration of a server that keeps nothing on disk."""
    further = {name.replace("_", "-"): value for name, value in more.items()}
    return {"bind": "127.0.0.1", "port": port, "save": '""', "appendonly": "no", **further}


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[Callable[..., Server]]:
    """Yield a starter of servers, all of which end with the block."""
    running: list[Server] = []

    def start(**options: object) -> Server:
        port = free_port()
        running.append(Server(folder / str(port), options_for(port, **options), port=port))
        until(running[-1].client().ping, "a server that answers")
        return running[-1]

    try:
        yield start
    finally:
        for server in running:
            server.kill()


def is_copying(replica: Server) -> bool:
    """Whether the replica is in touch with its master."""
    return bool(replica.client().info("replication").get("master_link_status") == "up")


class Service:
    """A master, its replica, and three Sentinels that watch them."""

    name = "locks"

    def __init__(self, folder: Path, start: Callable[..., Server]) -> None:
        self.master = start(repl_diskless_sync_delay=0)
        self.replica = start(replicaof=f"127.0.0.1 {self.master.port}", repl_diskless_sync_delay=0)
        until(lambda: is_copying(self.replica), "a replica")
        self.sentinels = [self._sentinel(folder) for _ in range(3)]
        for sentinel in self.sentinels:
            until(partial(self._hastened, sentinel), "a Sentinel that answers")
        for sentinel in self.sentinels:
            until(partial(self._sees_all, sentinel), "Sentinels that know each other")

    @staticmethod
    def _hastened(sentinel: Server) -> bool:
        """Have it tell the others of itself more often than every two seconds, where it can (Redis 7)."""
        with contextlib.suppress(redis.ResponseError):
            sentinel.ask("SENTINEL", "DEBUG", "PUBLISH-PERIOD", 100, "INFO-PERIOD", 500)
        return True

    def _sentinel(self, folder: Path) -> Server:
        port = free_port()
        options = {
            "bind": "127.0.0.1",
            "port": port,
            f"sentinel monitor {self.name}": f"127.0.0.1 {self.master.port} 2",
            f"sentinel down-after-milliseconds {self.name}": 60_000,  # a pause of the machine is no death
            f"sentinel failover-timeout {self.name}": 3000,
        }
        return Server(folder / f"sentinel-{port}", options, port=port, sentinel=True)

    def kill_master(self) -> None:
        """End the master, and have the Sentinels find that out after half a second."""
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "SET", self.name, "down-after-milliseconds", 500)
        self.master.kill()

    def _sees_all(self, sentinel: Server) -> bool:
        state: Any = sentinel.client().sentinel_master(self.name)
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == 2)

    @property
    def location(self) -> str:
        """How LOCKING names it."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"sentinel+redis://{hosts}/{self.name}/0"

    def stop(self) -> None:
        """End the Sentinels; the others belong to their starter."""
        for sentinel in self.sentinels:
            sentinel.kill()


class Cluster:
    """Three masters, and a replica of the first."""

    def __init__(self, start: Callable[..., Server], **options: object) -> None:
        if redis_version(redis_program()) < (7, 0):  # the wheel's
            pytest.skip("no redis-server 7 on PATH to start a cluster with")
        self.nodes = [self._node(start, options) for _ in range(4)]
        self.masters, self.replica = self.nodes[:3], self.nodes[3]
        for number, (node, slots) in enumerate(
            zip(self.masters, ((0, 5460), (5461, 10922), (10923, 16383)), strict=True)
        ):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", *slots)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        until(lambda: self._known_by(self.replica) == 4, "nodes that know each other")
        self.replica.ask("CLUSTER", "REPLICATE", self.id_of(self.masters[0]))
        until(self.is_whole, "a whole cluster")

    @staticmethod
    def _node(start: Callable[..., Server], options: Mapping[str, object]) -> Server:
        return start(
            cluster_enabled="yes",
            cluster_require_full_coverage="no",
            repl_diskless_sync_delay=0,
            **{"cluster_node_timeout": 1000, **options},
        )

    @staticmethod
    def _known_by(node: Server) -> int:
        return len(node.client().cluster("NODES"))

    @staticmethod
    def id_of(node: Server) -> str:
        """Return the node's name in the cluster."""
        answer = node.ask("CLUSTER", "MYID")
        return answer.decode() if isinstance(answer, bytes) else str(answer)

    def is_whole(self) -> bool:
        """Whether every node sees the cluster as it should be."""
        states: list[Any] = [node.client().cluster("INFO") for node in self.nodes]
        seen = {(state["cluster_state"], state["cluster_known_nodes"]) for state in states}
        return seen == {("ok", "4")} and is_copying(self.replica)

    @property
    def location(self) -> list[str]:
        """How LOCKING names it: any two of its nodes are enough."""
        return [f"redis://127.0.0.1:{node.port}" for node in self.nodes[1:3]]

    def owner(self, name: str) -> Server | None:
        """Return the node that answers for `name` itself; None while a dead one's slots have no other."""
        return next((node for node in self.nodes if self._answers(node, name)), None)

    @staticmethod
    def _answers(node: Server, name: str) -> bool:
        try:
            node.ask("EXISTS", name)
        except redis.RedisError:
            return False
        return True

    def other_than(self, node: Server) -> Server:
        """Return another master."""
        return next(master for master in self.masters if master is not node)

    def name_in(self, node: Server, prefix: str) -> str:
        """Return a name that begins with `prefix` and lives on `node`."""
        return next(name for i in range(10_000) if self.owner(name := f"{prefix}:{i}") is node)


def begin_move(cluster: Cluster, slot: int, source: Server, target: Server) -> None:
    """Open the move of a slot: from now on the source answers ASK for what it doesn't have."""
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))


def move_keys(source: Server, target: Server, keys: Sequence[bytes]) -> None:
    """Carry keys of the slot over."""
    source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)


def end_move(cluster: Cluster, slot: int, target: Server) -> None:
    """Close the move: all nodes know that the slot is the target's."""
    for node in [target, *(node for node in cluster.masters if node is not target)]:
        with contextlib.suppress(redis.ResponseError):  # a replica in their midst has no say
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(target))


def move_slot(cluster: Cluster, slot: int, source: Server, target: Server) -> None:
    """Move a slot with all its keys."""
    begin_move(cluster, slot, source, target)
    if keys := source.client().execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
        move_keys(source, target, keys)
    end_move(cluster, slot, target)
