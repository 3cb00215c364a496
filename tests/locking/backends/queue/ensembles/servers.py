"""Real ZooKeeper and etcd servers on loopback ports, from Debian's packages: alone, and three together."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import pytest
import requests

from locking import BackendUnavailable, get_lock
from locking.backends.base import BaseLockBackend
from locking.backends.zookeeper import ZooKeeperBackend, four_letters
from locking.signals import Observer, observe
from tests.locking.backends.queue.ensembles.certificates import Certificates
from tests.support import processes
from tests.support.processes import ServerProcess, free_ports

PATIENCE = 40.0
"""Seconds after which a condition that never comes fails its test; three JVMs start slowly."""

JAR = Path("/usr/share/java/zookeeper.jar")
NETTY = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar"
"""What its port for TLS needs, and Debian's jar doesn't name."""

MISSING_ZOOKEEPER = "no java on PATH, or no zookeeper.jar in /usr/share/java (Debian: zookeeper)"
MISSING_ETCD = "no etcd on PATH (Debian: etcd-server)"


def no_zookeeper() -> bool:
    """Whether ZooKeeper can't be run here."""
    return shutil.which("java") is None or not JAR.exists()


def no_etcd() -> bool:
    """Whether etcd can't be run here."""
    return shutil.which("etcd") is None


needs_zookeeper = pytest.mark.skipif(no_zookeeper(), reason=MISSING_ZOOKEEPER)
needs_etcd = pytest.mark.skipif(no_etcd(), reason=MISSING_ETCD)


def until(condition: Callable[[], Any], what: str) -> Any:
    return processes.until(condition, what, within=PATIENCE)


def serves() -> bool:
    """Whether a lock of `LOCKING` can be taken: a client needs a moment to come back."""
    try:
        get_lock("serves", ttl=5).acquire().release()
    except BackendUnavailable:
        return False
    return True


class Server(ServerProcess):
    """One server of an ensemble; it can be killed, frozen and started again on the same data."""

    def __init__(self, folder: Path, command: Sequence[str], port: int) -> None:
        self.port = port
        super().__init__(folder, command)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"


class Ensemble:
    """Servers that are one: `servers`, and how to find out who leads."""

    servers: list[Server]

    def is_whole(self) -> bool:
        """Whether all serve, and one of them leads."""
        raise NotImplementedError

    def await_start(self) -> None:
        """Wait until all are one; leave no process behind if they don't become it."""
        try:
            until(self.is_whole, f"{len(self.servers)} servers that are one")
        except BaseException:
            self.stop()
            raise

    def leader(self) -> Server:
        """Return the server that leads."""
        raise NotImplementedError

    def follower(self) -> Server:
        """Return a server that doesn't lead."""
        leader = self.leader()
        return next(server for server in self.servers if server is not leader)

    def restore(self) -> None:
        """Start again anyone who was killed, and wait until all are one."""
        for server in self.servers:
            if server.process.poll() is not None:
                server.start()
        until(self.is_whole, "a whole ensemble")

    def stop(self) -> None:
        """End all."""
        for server in self.servers:
            server.kill()


# ZooKeeper

TICK = 200
"""Milliseconds of ZooKeeper's tick: sessions end in steps of it."""

CONFIG = """
tickTime={tick}
initLimit=100
syncLimit=15
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok
maxSessionTimeout=60000
maxClientCnxns=0
"""


SECURE = """
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={certificates.folder}/store.pem
ssl.trustStore.location={certificates.folder}/ca.pem
"""


class ZooKeeper(Ensemble):
    """One server, or several that hold an election; with certificates it listens by TLS too."""

    def __init__(self, folder: Path, number: int = 1, certificates: Certificates | None = None) -> None:
        ports = free_ports(4 * number)
        self._ports = [ports[i : i + 4] for i in range(0, len(ports), 4)]
        self._certificates = certificates
        self.servers = [self._server(folder / str(i), i) for i in range(number)]
        self.await_start()

    def _server(self, folder: Path, number: int) -> Server:
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "myid").write_text(str(number + 1))
        config = CONFIG.format(tick=TICK, folder=folder, port=self._ports[number][0])
        if len(self._ports) > 1:
            lines = (f"server.{i + 1}=127.0.0.1:{p[1]}:{p[2]}\n" for i, p in enumerate(self._ports))
            config += "".join(lines)
        if self._certificates is not None:
            config += SECURE.format(port=self._ports[number][3], certificates=self._certificates)
        (folder / "zoo.cfg").write_text(config)
        command = [
            "java",
            "-Xmx64m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Dzookeeper.forceSync=no",
            "-cp",
            f"{JAR}:{NETTY}",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(folder / "zoo.cfg"),
        ]
        return Server(folder, command, self._ports[number][0])

    def _mode(self, server: Server) -> str:
        answer = four_letters(server.address, b"srvr", 2.0) or ""
        return next((line[6:] for line in answer.splitlines() if line.startswith("Mode: ")), "")

    def is_whole(self) -> bool:
        """See `Ensemble`."""
        modes = sorted(map(self._mode, self.servers))
        return modes == (["standalone"] if len(modes) == 1 else ["follower", "follower", "leader"])

    def leader(self) -> Server:
        """See `Ensemble`."""
        return until(lambda: next((s for s in self.servers if self._mode(s) == "leader"), None), "a leader")  # type: ignore[no-any-return]

    @property
    def location(self) -> str:
        """How LOCKING names it."""
        return ",".join(server.address for server in self.servers) + "/holdfast/tests"

    @property
    def secure_location(self) -> str:
        """The same by TLS."""
        return ",".join(f"127.0.0.1:{ports[3]}" for ports in self._ports) + "/holdfast/secure"


# etcd


class Etcd(Ensemble):
    """One member, or several that hold an election; with certificates it speaks only TLS, to its friends."""

    def __init__(self, folder: Path, number: int = 1, certificates: Certificates | None = None) -> None:
        self._scheme, self._certificates = "https" if certificates else "http", certificates
        self.session = requests.Session()
        self.session.trust_env = False
        if certificates is not None:
            self.session.verify = str(certificates.of("ca"))
            self.session.cert = (str(certificates.of("client")), str(certificates.key("client")))
        ports = free_ports(2 * number)
        self._ports = [ports[i : i + 2] for i in range(0, len(ports), 2)]
        self.servers = [self._server(folder / str(i), i) for i in range(number)]
        self.await_start()

    def _server(self, folder: Path, number: int) -> Server:
        client, peer = (
            f"{self._scheme}://127.0.0.1:{self._ports[number][0]}",
            f"http://127.0.0.1:{self._ports[number][1]}",
        )
        members = ",".join(f"m{i}=http://127.0.0.1:{p[1]}" for i, p in enumerate(self._ports))
        heartbeat, election = (50, 500) if len(self._ports) == 1 else (100, 1000)
        options = {
            "name": f"m{number}",
            "data-dir": folder / "data",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": members,
            "heartbeat-interval": heartbeat,
            "election-timeout": election,
            "log-level": "error",
            **self._tls(),
        }
        command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
        return Server(folder, command, self._ports[number][0])

    def _tls(self) -> dict[str, Any]:
        if self._certificates is None:
            return {}
        return {
            "cert-file": self._certificates.of("server"),
            "key-file": self._certificates.key("server"),
            "trusted-ca-file": self._certificates.of("ca"),
            "client-cert-auth": "true",
        }

    def ask(self, server: Server, path: str, **body: Any) -> dict[str, Any]:
        """Send a request past the backend."""
        answer = self.session.post(f"{self._scheme}://{server.address}/v3{path}", json=body, timeout=30)
        answer.raise_for_status()
        return dict(answer.json())

    def _status(self, server: Server) -> dict[str, Any]:
        with contextlib.suppress(requests.RequestException):
            return self.ask(server, "/maintenance/status")
        return {}

    def is_whole(self) -> bool:
        """See `Ensemble`."""
        leaders = {self._status(server).get("leader", "0") for server in self.servers}
        return len(leaders) == 1 and "0" not in leaders

    def leader(self) -> Server:
        """See `Ensemble`."""
        return until(lambda: next(filter(self._leads, self.servers), None), "a leader")  # type: ignore[no-any-return]

    def _leads(self, server: Server) -> bool:
        status = self._status(server)
        return bool(status) and status.get("leader") == status["header"]["member_id"]

    @property
    def location(self) -> list[str]:
        """How LOCKING names it."""
        return [f"{self._scheme}://{server.address}" for server in self.servers]


E = TypeVar("E", bound=Ensemble)


class Built(Observer):
    """Notes the backends on ZooKeeper that tests have used."""

    def __init__(self) -> None:
        self.backends: WeakSet[ZooKeeperBackend] = WeakSet()

    def used(self, backend: BaseLockBackend) -> None:
        """See the base class; a variant has the session of its main backend."""
        if isinstance(backend, ZooKeeperBackend):
            self.backends.add(backend)


BUILT = Built()
observe(BUILT)


def end_sessions() -> None:
    """End the sessions of backends that a test left with a hold, or used after its settings had gone."""
    for backend in list(BUILT.backends):
        backend._session.stop()


@contextlib.contextmanager
def running(make: Callable[[], E]) -> Iterator[E]:
    """Run an ensemble for the length of the block."""
    ensemble = make()
    try:
        yield ensemble
    finally:
        ensemble.stop()
