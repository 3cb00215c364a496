"""Redis: alone, with a replica under Sentinels, as a cluster, and five for Redlock."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any, ClassVar

import redis

from histories.hosts import address
from histories.servers import Server, until
from histories.systems.base import LEASE, REQUEST, Abilities, System

PORT = 6379
SERVICE = "locks"


class RedisServer(Server):
    """One redis-server, or a Sentinel."""

    def __init__(self, host: str, port: int = PORT, *, sentinel: bool = False, **options: object) -> None:
        super().__init__(host, f"redis-{host}-{port}")
        self.port = port
        given = {name.replace("_", "-"): value for name, value in options.items()}
        base = {"port": port, "protected-mode": "no", "dir": self.disk.path}
        if not sentinel:
            base |= {"save": '""', "appendonly": "yes", "repl-diskless-sync-delay": 0}
        config = self.disk.path / "redis.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in (base | given).items()))
        self.command = ["redis-server", str(config), *(["--sentinel"] if sentinel else [])]
        self.start()
        until(lambda: self.ask("PING"), f"{self.name} answers")

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it; an append-only file that a full disk has broken is mended first, as an operator would."""
        manifest = self.disk.path / "appendonlydir" / "appendonly.aof.manifest"
        if manifest.exists():
            mend = ["redis-check-aof", "--fix", str(manifest)]
            subprocess.run(
                mend, input=b"y\n", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
            )
        super().start(environment)

    def ask(self, *command: object) -> Any:
        """Send one command."""
        with self.client() as client:
            return client.execute_command(*command)

    def client(self) -> redis.Redis:
        """Return a client of the runner's own."""
        return redis.Redis(address(self.host), self.port, socket_timeout=1, decode_responses=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://{address(self.host)}:{self.port}"

    def replicas(self) -> int:
        """Return how many replicas follow it."""
        state: Any = self.client().info("replication")
        return int(state["connected_slaves"])

    def role(self) -> str:
        """Return master, slave or sentinel."""
        return str(self.ask("ROLE")[0])


class RedisSystem(System):
    """What all have in common."""

    members: list[RedisServer]  # type: ignore[assignment]

    def locking(self) -> dict[str, Any]:
        """See `System`."""
        options = {"socket_timeout": REQUEST, "socket_connect_timeout": REQUEST}
        return {"LOCATION": self.location(), "OPTIONS": options, "WATCHDOG_TTL": LEASE}

    def location(self) -> str | list[str]:
        """Return LOCATION."""
        return self.members[0].url + "/0"

    def is_whole(self) -> bool:
        """Whether all answer and take writes."""
        return all(member.ask("SET", "histories:probe", "1") for member in self.members)


class Alone(RedisSystem):
    """One server, its log of commands flushed once per second."""

    name = "Redis"

    def start(self) -> None:
        """See `System`."""
        self.members = [RedisServer("n1")]


class Sentinel(RedisSystem):
    """A master, two replicas, and a Sentinel on each host."""

    name = "Redis Sentinel"
    settings: ClassVar[dict[str, Any]] = {}

    def start(self) -> None:
        """See `System`."""
        master = f"{address('n1')} {PORT}"
        followers = (RedisServer(host, replicaof=master, **self.settings) for host in ("n2", "n3"))
        self.members = [RedisServer("n1", **self.settings), *followers]
        self.sentinels = [self._sentinel(host, master) for host in ("n1", "n2", "n3")]
        until(self.is_whole, "a master and two replicas that the Sentinels know")

    @staticmethod
    def _sentinel(host: str, master: str) -> RedisServer:
        options = {
            f"sentinel monitor {SERVICE}": f"{master} 2",
            f"sentinel down-after-milliseconds {SERVICE}": 1500,
            f"sentinel failover-timeout {SERVICE}": 4000,
        }
        return RedisServer(host, 26379, sentinel=True, **options)

    def location(self) -> str:
        """See `RedisSystem`."""
        hosts = ",".join(f"{address(sentinel.host)}:{sentinel.port}" for sentinel in self.sentinels)
        return f"sentinel+redis://{hosts}/{SERVICE}/0"

    def leader(self) -> RedisServer:
        """Return the master that the Sentinels name."""
        host = self.sentinels[1].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[0]
        return next(member for member in self.members if address(member.host) == host)

    def is_whole(self) -> bool:
        """Whether one leads, two follow it, and every Sentinel agrees."""
        named = {str(each.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)) for each in self.sentinels}
        states: list[Any] = [each.client().sentinel_master(SERVICE) for each in self.sentinels]
        known = all(state["num-slaves"] == 2 and state["num-other-sentinels"] == 2 for state in states)
        roles = sorted(member.role() for member in self.members)
        if len(named) != 1 or not known or roles != ["master", "slave", "slave"]:
            return False
        leader = self.leader()
        return leader.role() == "master" and leader.replicas() == 2

    def stop(self) -> None:
        """See `System`."""
        for sentinel in self.sentinels:
            sentinel.remove()
        super().stop()


class Guarded(Sentinel):
    """The same, with the setting that has a master without replicas refuse writes."""

    name = "Redis Sentinel, min-replicas-to-write 1"
    settings: ClassVar[dict[str, Any]] = {"min_replicas_to_write": 1, "min_replicas_max_lag": 10}


class Cluster(RedisSystem):
    """Three masters, each with a replica on another host."""

    name = "Redis Cluster"
    slots = ((0, 5460), (5461, 10922), (10923, 16383))

    def start(self) -> None:
        """See `System`."""
        places = (("n1", PORT), ("n2", PORT), ("n3", PORT), ("n4", PORT), ("n5", PORT), ("n4", PORT + 1))
        self.members = [
            RedisServer(host, port, cluster_enabled="yes", cluster_node_timeout=1500) for host, port in places
        ]
        for number, (master, slots) in enumerate(zip(self.members, self.slots, strict=False)):
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            master.ask("CLUSTER", "ADDSLOTSRANGE", *slots)
        first = self.members[0]
        for member in self.members[1:]:
            member.ask("CLUSTER", "MEET", address(first.host), first.port)
        until(
            lambda: all(self._info(each)["cluster_known_nodes"] == "6" for each in self.members), "six nodes"
        )
        for master, replica in zip(self.members[:3], self.members[3:], strict=True):
            name = master.ask("CLUSTER", "MYID")
            until(lambda r=replica, n=name: r.ask("CLUSTER", "REPLICATE", n), "a replica")  # type: ignore[misc]
        until(self.is_whole, "a whole cluster")

    @staticmethod
    def _info(member: RedisServer) -> dict[str, str]:
        answer: Any = member.ask("CLUSTER", "INFO")
        if isinstance(answer, str):
            return dict(line.split(":") for line in answer.split())
        return {str(name): str(value) for name, value in answer.items()}

    def location(self) -> list[str]:
        """See `RedisSystem`."""
        return [member.url for member in self.members]

    def leader(self) -> RedisServer:
        """Return the first node that is a master."""
        return next(member for member in self.members if member.lives and member.role() == "master")

    def is_whole(self) -> bool:
        """Whether every node says so, and there are three masters with a replica each."""
        states = {self._info(member)["cluster_state"] for member in self.members}
        masters = [member for member in self.members if member.role() == "master"]
        replicas = [master.replicas() for master in masters]
        return states == {"ok"} and replicas == [1, 1, 1]


class Redlock(RedisSystem):
    """Five servers that know nothing of each other."""

    name = "Redlock"
    abilities = Abilities(semaphore=False, read_write=False)

    def start(self) -> None:
        """See `System`."""
        self.members = [RedisServer(host) for host in ("n1", "n2", "n3", "n4", "n5")]

    def locking(self) -> dict[str, Any]:
        """See `System`."""
        options = {"node_timeout": 0.25, "restart_delay": LEASE}
        return super().locking() | {
            "BACKEND": "locking.backends.redlock.RedlockBackend",
            "OPTIONS": options,
        }

    def location(self) -> list[str]:
        """See `RedisSystem`."""
        return [member.url + "/0" for member in self.members]
