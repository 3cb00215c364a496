"""What LOCATION, CACHE and OPTIONS may say, and the servers that are reached by it."""

import asyncio
import gc
import subprocess
from typing import Any
from unittest import mock

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection

from locking import BackendUnavailable, get_lock
from locking.backends.redis import sentinel, topology
from locking.backends.redis.async_transport import connection_like
from locking.backends.redis.cluster import Address
from locking.backends.redis.transport import ThreadConnection
from locking.core.handler import locks
from tests.locking.backends.redis.topologies.servers import (
    Server,
    free_port,
    options_for,
    until,
)
from tests.locking.backends.redis.topologies.waiters import acquired_in_thread, queue_of, until_waiting

WRONG = [
    ({"LOCATION": "http://localhost"}, "scheme"),
    ({"LOCATION": "redis://localhost:port"}, "LOCATION"),
    ({"LOCATION": []}, "a list of URLs"),
    ({"LOCATION": [7000, 7001]}, "a list of texts, not list"),
    ({"LOCATION": 7000}, "a list of texts, not int"),
    ({"LOCATION": ["redis://localhost/3"]}, "names a database; a cluster has only one"),
    ({"LOCATION": ["unix:///run/redis.sock"]}, "socket file"),
    ({"LOCATION": "sentinel+redis://localhost:26379"}, "names no service"),
    ({"LOCATION": "sentinel+redis://localhost:26379,/locks"}, "no host:port"),
    ({"LOCATION": "redis://localhost", "CACHE": "default"}, "both CACHE and LOCATION"),
    ({"LOCATION": "redis://localhost", "OPTIONS": {"wait_replicas": -1}}, "wait_replicas"),
    ({"LOCATION": "redis://localhost", "OPTIONS": {"wait_replicas": "all"}}, "'all'"),
    ({"LOCATION": "redis://localhost", "OPTIONS": {"wait_timeout_ms": 0}}, "wait_timeout_ms"),
]


@pytest.mark.parametrize(("entry", "reason"), WRONG)
def test_a_wrong_setting_is_refused_with_its_reason(settings, entry, reason):
    """An invalid setting is refused before any connection, and the message names it."""
    settings.LOCKING = {"default": entry}

    with pytest.raises(ImproperlyConfigured, match=reason):
        get_lock("any")


def test_tasks_verify_certificates_as_threads_do():
    """Whatever says how one is verified holds for both kinds of connection."""
    flags = "ssl_exclude_verify_flags=VERIFY_X509_STRICT&ssl_include_verify_flags=VERIFY_CRL_CHECK_LEAF"
    pool = ConnectionPool.from_url(f"rediss://cache.example/0?{flags}")
    task: Any = connection_like(pool)
    thread: Any = ThreadConnection(pool).connection
    assert task.include_verify_flags == thread.ssl_include_verify_flags != []
    assert task.exclude_verify_flags == thread.ssl_exclude_verify_flags != []


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"ssl": True, "ssl_ca_certs": "ca"}, SSLConnection),
        ({"ssl": False, "ssl_ca_certs": "ca"}, Connection),
    ],
)
def test_a_cache_on_a_cluster_is_reached_by_tls_where_its_client_is(settings, monkeypatch, given, kind):
    """`ssl` is an argument of redis-py's client; of a connection the class tells."""
    nodes = mock.Mock(startup_nodes={"a": ClusterNode("192.0.2.1", 1)}, connection_kwargs=given)
    client = mock.Mock(spec=RedisCluster, nodes_manager=nodes)
    monkeypatch.setattr(topology, "_client_of_cache", lambda settings: client)
    settings.LOCKING = {"default": {"CACHE": "default"}}
    backend: Any = locks["default"]
    made = backend.calls._server(Address("192.0.2.1", 1)).make().connection
    assert type(made) is kind
    assert made.host == "192.0.2.1"


def test_a_password_stays_out_of_the_message(settings):
    """A wrong LOCATION is quoted without its password."""
    settings.LOCKING = {"default": {"LOCATION": "sentinel+redis://:s3cret@localhost:26379"}}

    with pytest.raises(ImproperlyConfigured, match=r"\*\*\*@localhost") as refusal:
        get_lock("any")
    assert "s3cret" not in str(refusal.value)


def test_mutant_a_location_as_it_is_shows_its_password(settings, monkeypatch):
    """The rule of the test above taken out."""
    monkeypatch.setattr(sentinel, "without_password", lambda url: url)
    settings.LOCKING = {"default": {"LOCATION": "sentinel+redis://:s3cret@localhost:26379"}}
    with pytest.raises(ImproperlyConfigured, match="s3cret"):
        get_lock("any")


def test_a_socket_file_serves_threads_and_tasks(tmp_path, start, settings):
    """`unix://` locks, hands over and serves asyncio."""
    socket = tmp_path / "redis.sock"
    server = start(unixsocket=socket)
    settings.LOCKING = {"default": {"LOCATION": f"unix://{socket}?db=2"}}
    held = get_lock("local").acquire()
    waiter = acquired_in_thread("local")
    until_waiting(server, "local", database=2)

    held.release()

    waiter.result(25).release()
    asyncio.run(_lock_and_let_go("local"))
    assert not get_lock("local").locked()


async def _lock_and_let_go(name):
    async with get_lock(name) as lease:
        lease.ensure_held()


async def _be_refused(name):
    with pytest.raises(BackendUnavailable, match=r"(?i)certificate|ssl"):
        await _lock_and_let_go(name)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A certificate authority, a server's certificate for 127.0.0.1, and another authority."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        subject = ("-subj", f"/CN={name}", "-days", 2)
        openssl(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.crt",
            *subject,
        )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    openssl(
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "server.key",
        "-out",
        "server.csr",
        "-subj",
        "/CN=server",
    )
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", 2)
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.crt", *signed)
    return folder


@pytest.fixture(scope="module")
def tls_server(certificates, tmp_path_factory):
    """A server that speaks TLS only."""
    port = free_port()
    tls = {
        "port": 0,
        "tls-port": port,
        "tls-auth-clients": "no",
        "tls-cert-file": certificates / "server.crt",
        "tls-key-file": certificates / "server.key",
        "tls-ca-cert-file": certificates / "ca.crt",
    }
    server = Server(tmp_path_factory.mktemp("tls") / "server", {**options_for(port), **tls}, port=port)
    until(lambda: b"Ready to accept" in (server.folder / "log").read_bytes(), "a TLS server")
    yield server
    server.kill()


UNPROVEN = [("127.0.0.1", "other"), ("localhost", "ca"), ("127.0.0.1", None)]


def tls_url(host, server, certificates, authority):
    """Return the server's address, with the file of the authority that is to vouch for it."""
    query = f"?ssl_ca_certs={certificates / authority}.crt" if authority else ""
    return f"rediss://{host}:{server.port}/0{query}"


def test_tls_is_verified_and_serves_threads_and_tasks(certificates, tls_server, settings):
    """`rediss://` with the right authority locks, hands over and serves asyncio."""
    url = f"rediss://127.0.0.1:{tls_server.port}/0?ssl_ca_certs={certificates / 'ca.crt'}"
    settings.LOCKING = {"default": {"LOCATION": url}}
    held = get_lock("secret").acquire()
    waiter = acquired_in_thread("secret")
    with redis.Redis.from_url(url) as client:
        until(lambda: client.llen(queue_of("secret")), "a waiter")

    held.release()

    waiter.result(25).release()
    asyncio.run(_lock_and_let_go("secret"))


@pytest.mark.parametrize(("host", "authority"), UNPROVEN)
def test_an_unproven_server_is_refused(certificates, tls_server, settings, host, authority):
    """A certificate of an unknown authority or for another host is refused."""
    settings.LOCKING = {"default": {"LOCATION": tls_url(host, tls_server, certificates, authority)}}

    with pytest.raises(BackendUnavailable, match=r"(?i)certificate|ssl"):
        get_lock("secret").try_acquire()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("host", "authority"), UNPROVEN)
def test_an_unproven_server_is_refused_to_tasks(certificates, tls_server, settings, host, authority):
    """The same for asyncio, which may leave the socket of a failed handshake to the collector."""
    settings.LOCKING = {"default": {"LOCATION": tls_url(host, tls_server, certificates, authority)}}

    asyncio.run(_be_refused("secret"))
    gc.collect()


def test_a_waiter_on_a_demoted_server_gets_no_lock(start, settings):
    """A message reaches a replica's listeners too: who listens on a former master isn't given the lock."""
    old, new = start(repl_diskless_sync_delay=0), start(repl_diskless_sync_delay=0)
    settings.LOCKING = {"default": {"LOCATION": old.url, "WAIT": None}, "new": {"LOCATION": new.url}}
    held = get_lock("demoted", ttl=60).acquire()
    new.ask("REPLICAOF", "127.0.0.1", old.port)
    acquired_in_thread("demoted", ttl=60)
    until_waiting(new, "demoted")
    new.ask("REPLICAOF", "NO", "ONE")
    old.ask("REPLICAOF", "127.0.0.1", new.port)
    until(lambda: old.client().info("replication")["master_link_status"] == "up", "a replica")
    with (
        new.client() as client,
        client.pubsub() as near_listener,
        old.client() as other,
        other.pubsub() as far_listener,
    ):
        for listener in (near_listener, far_listener):
            listener.psubscribe("holdfast_lock_wake:*")
            until(listener.get_message, "a subscription")

        assert locks["new"].release("demoted", held.leases[0].owner)

        heard = until(
            lambda: far_listener.get_message(ignore_subscribe_messages=True), "what the waiter hears"
        )
    assert len(heard["data"].split()) == 1  # "ask again", and no token
    assert new.ask("EXISTS", "demoted") == 0
