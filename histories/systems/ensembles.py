"""ZooKeeper and etcd: three servers each that hold elections."""

from __future__ import annotations

import socket
from typing import Any

import requests

from histories.hosts import address
from histories.servers import Server, until
from histories.systems.base import LEASE, REQUEST, System

PLACES = ("n1", "n2", "n3")
JARS = "/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar"
ZOOKEEPER = """
tickTime=250
initLimit=40
syncLimit=8
dataDir={data}
clientPort=2181
admin.enableServer=false
4lw.commands.whitelist=srvr
maxSessionTimeout=60000
maxClientCnxns=0
"""


class ZooKeeper(System):
    """Three servers; sessions end after the length of a lease."""

    name = "ZooKeeper"
    promises = ("lock", "renewed", "semaphore", "read_write", "fenced")

    def start(self) -> None:
        """See `System`."""
        self.members = [self._server(number, host) for number, host in enumerate(PLACES, 1)]
        until(self.is_whole, "a leader and two followers")

    @staticmethod
    def _server(number: int, host: str) -> Server:
        server = Server(host, f"zookeeper-{host}", megabytes=64)
        data = server.disk.path / "data"
        data.mkdir()
        (data / "myid").write_text(str(number))
        config = server.disk.path / "zoo.cfg"
        friends = "".join(f"server.{i}={address(place)}:2888:3888\n" for i, place in enumerate(PLACES, 1))
        config.write_text(ZOOKEEPER.format(data=data) + friends)
        machine = ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        quorum = ["-Dzookeeper.preAllocSize=1024", "-Dzookeeper.forceSync=no", "-cp", JARS]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        server.command = ["java", *machine, *quorum, main, str(config)]
        server.start()
        return server

    @staticmethod
    def _mode(server: Server) -> str:
        with socket.create_connection((address(server.host), 2181), timeout=1) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while part := connection.recv(4096):
                answer += part
        return next((line[6:] for line in answer.decode().splitlines() if line.startswith("Mode: ")), "")

    def leader(self) -> Server:
        """Return the server that says it leads."""
        return until(lambda: next(filter(self._leads, self.members), None), "a leader")  # type: ignore[return-value]

    def _leads(self, server: Server) -> bool:
        try:
            return self._mode(server) == "leader"
        except OSError:
            return False

    def is_whole(self) -> bool:
        """See `System`."""
        return sorted(map(self._mode, self.members)) == ["follower", "follower", "leader"]

    def locking(self) -> dict[str, Any]:
        """See `System`."""
        return {
            "BACKEND": "locking.backends.zookeeper.ZooKeeperBackend",
            "LOCATION": ",".join(f"{address(host)}:2181" for host in PLACES) + "/locks",
            "OPTIONS": {"session_timeout": LEASE, "timeout": REQUEST},
            "WATCHDOG_TTL": LEASE,
        }


class Etcd(System):
    """Three members."""

    name = "etcd"
    promises = ("lock", "renewed", "semaphore", "read_write", "fenced")

    def start(self) -> None:
        """See `System`."""
        self.session = requests.Session()
        self.session.trust_env = False
        self.members = [self._member(host) for host in PLACES]
        until(self.is_whole, "members that agree on a leader")

    @staticmethod
    def _member(host: str) -> Server:
        member = Server(host, f"etcd-{host}", megabytes=256)  # it sets aside two files of 64 MB
        own = address(host)
        options = {
            "name": host,
            "data-dir": member.disk.path / "data",
            "listen-client-urls": f"http://{own}:2379",
            "advertise-client-urls": f"http://{own}:2379",
            "listen-peer-urls": f"http://{own}:2380",
            "initial-advertise-peer-urls": f"http://{own}:2380",
            "initial-cluster": ",".join(f"{place}=http://{address(place)}:2380" for place in PLACES),
            "heartbeat-interval": 100,
            "election-timeout": 1000,
            "log-level": "error",
        }
        member.command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
        member.start()
        return member

    def _status(self, member: Server) -> dict[str, Any]:
        url = f"http://{address(member.host)}:2379/v3/maintenance/status"
        return dict(self.session.post(url, json={}, timeout=1).json())

    def leader(self) -> Server:
        """Return the member that says it leads."""
        return until(lambda: next(filter(self._leads, self.members), None), "a leader")  # type: ignore[return-value]

    def _leads(self, member: Server) -> bool:
        try:
            status = self._status(member)
        except requests.RequestException:
            return False
        return bool(status.get("leader") == status["header"]["member_id"])

    def is_whole(self) -> bool:
        """See `System`."""
        leaders = {self._status(member).get("leader", "0") for member in self.members}
        return len(leaders) == 1 and "0" not in leaders

    def locking(self) -> dict[str, Any]:
        """See `System`."""
        return {
            "BACKEND": "locking.backends.etcd.EtcdBackend",
            "LOCATION": [f"http://{address(host)}:2379" for host in PLACES],
            "OPTIONS": {"timeout": REQUEST},
            "WATCHDOG_TTL": LEASE,
        }
