"""Users, passwords and TLS, on real servers with certificates of our own making."""

from __future__ import annotations

import gc
import logging
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test.utils import override_settings

from locking import BackendError, BackendUnavailable, get_lock
from locking.conf import read_alias
from locking.core.handler import locks
from locking.inspection.held import held_locks
from locking.testing.contract.base import begin, counted_waiters, until
from locking.utils.ownership import new_owner
from tests.backends import ANSWER, ETCD, ZOOKEEPER, any_engine
from tests.locking.backends.queue.ensembles.certificates import Certificates, needs_openssl
from tests.locking.backends.queue.ensembles.servers import (
    Etcd,
    ZooKeeper,
    end_sessions,
    needs_etcd,
    needs_zookeeper,
    running,
)

# kazoo forgets a socket for each certificate that it refuses; Python closes it, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE = 30.0
PASSWORD = "s3cret of the shop"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, a server's and a client's."""
    yield Certificates(tmp_path_factory.mktemp("certificates"))
    gc.collect()  # what refused handshakes left behind, while their warnings are passed over


@contextmanager
def lock_on(backend: str, location: Any, **options: Any) -> Iterator[None]:
    """Have `LOCKING` with these options; the connections are closed with it."""
    entry = {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}
    with override_settings(LOCKING={"default": entry}):
        try:
            yield
        finally:
            with suppress(ImproperlyConfigured):
                locks["default"].close()


def use_everything() -> None:
    """Take, hand over, extend, list, break and release a lock."""
    with counted_waiters(locks["default"]) as waiters, get_lock("a", ttl=20) as lease:
        waiter = begin(get_lock("a", ttl=20, wait=60).acquire)
        until(waiters.number, PATIENCE)
        lease.extend(60)
        any_engine().publish_heartbeats({"me": "{}"})
        assert [row.name for row in held_locks().rows] == ["a"]
        assert set(any_engine().heartbeats(["me"])) == {"me"}
    waiter.result(timeout=PATIENCE).release()
    any_engine().publish_heartbeats({}, forget=["me"])
    locks["default"].check(live=True)
    assert held_locks().rows == []


def ask_once() -> None:
    """Ask for the lock past everything that would clean up behind a refusal, and reconnect for it."""
    locks["default"].try_acquire("a", new_owner(), 5.0)


# etcd


@pytest.fixture(scope="module")
def etcd(certificates, tmp_path_factory):
    """A member that wants a client's certificate and a user, who may touch one prefix only."""
    with running(partial(Etcd, tmp_path_factory.mktemp("secure-etcd"), 1, certificates)) as ensemble:
        ask = partial(ensemble.ask, ensemble.servers[0])
        ask("/auth/user/add", name="root", password="root")
        ask("/auth/role/add", name="root")
        ask("/auth/user/grant", user="root", role="root")
        ask("/auth/role/add", name="locks")
        every = {"key": _encoded("shop/"), "range_end": _encoded("shop0")}
        ask("/auth/role/grant", name="locks", perm={"permType": "READWRITE", **every})
        ask("/auth/user/add", name="shop", password=PASSWORD)
        ask("/auth/user/grant", user="shop", role="locks")
        ask("/auth/enable")
        yield ensemble


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


@pytest.fixture
def etcd_options(certificates):
    """What is right for that member."""
    yield {
        "prefix": "shop/",
        "timeout": ANSWER,
        "ca_cert": certificates.of("ca"),
        "cert_cert": str(certificates.of("client")),
        "cert_key": str(certificates.key("client")),
        "user": "shop",
        "password": PASSWORD,
    }
    gc.collect()  # connections that a refused handshake left behind


@needs_etcd
@needs_openssl
def test_etcd_with_a_user_and_tls(etcd, etcd_options, certificates, monkeypatch):
    """Everything works for a user who may touch only the prefix, whatever the environment says of CAs."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.of("stranger")))
    with lock_on(ETCD, etcd.location, **etcd_options):
        use_everything()


@needs_etcd
@needs_openssl
def test_etcd_s_token_is_replaced_when_a_member_forgets_it(etcd, etcd_options):
    """A member that restarts knows no token any more: the next request logs in again, and the hold lives."""
    with lock_on(ETCD, etcd.location, **etcd_options), get_lock("a", ttl=60) as lease:
        etcd.servers[0].kill()
        etcd.restore()
        lease.extend(60)
        get_lock("b", ttl=5).acquire().release()


@needs_etcd
@needs_openssl
def test_a_login_carries_no_token(etcd, etcd_options):
    """etcd refuses a request with a token that it doesn't know, a login too."""
    with lock_on(ETCD, etcd.location, **etcd_options), get_lock("a", ttl=60) as lease:
        cast(Any, locks["default"])._client.session.headers["Authorization"] = "forgotten.1"
        lease.extend(60)


@needs_etcd
@needs_openssl
@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"password": "wrong"}, BackendError, "authentication failed"),
        ({"user": None, "password": None}, BackendError, "user name is empty"),
        ({"prefix": "others/"}, BackendError, "permission denied"),
        ({"ca_cert": "stranger"}, BackendUnavailable, "CERTIFICATE_VERIFY_FAILED"),
        ({"cert_cert": None, "cert_key": None}, BackendUnavailable, "SSL"),
    ],
    ids=["password", "unknown user", "prefix", "authority", "no certificate"],
)
def test_etcd_refuses_whom_it_should(etcd, etcd_options, certificates, change, error, says):
    """A wrong password, prefix or certificate is an error that says so, and shows no password."""
    if change.get("ca_cert"):
        change = {"ca_cert": str(certificates.of("stranger"))}
    with lock_on(ETCD, etcd.location, **{**etcd_options, **change}):
        with pytest.raises(error, match=says) as refusal:
            ask_once()
        assert PASSWORD not in str(refusal.value)
        assert "wrong" not in str(refusal.value)


# ZooKeeper


@pytest.fixture(scope="module")
def zookeeper(certificates, tmp_path_factory):
    """A server with a port for TLS, which wants a client's certificate."""
    folder = tmp_path_factory.mktemp("secure-zookeeper")
    with running(partial(ZooKeeper, folder, 1, certificates)) as ensemble:
        yield ensemble
        end_sessions()


@pytest.fixture
def zookeeper_options(certificates, caplog):
    """What is right for that port, and a user."""
    caplog.set_level(logging.CRITICAL, "kazoo")  # a record keeps its error, which keeps the forgotten socket
    yield {
        "use_ssl": True,
        "ca": certificates.of("ca"),
        "timeout": ANSWER,
        "certfile": str(certificates.of("client")),
        "keyfile": str(certificates.key("client")),
        "user": "shop",
        "password": PASSWORD,
    }
    gc.collect()  # the forgotten sockets, while their warnings are passed over


@needs_zookeeper
@needs_openssl
def test_zookeeper_with_a_user_and_tls(zookeeper, zookeeper_options):
    """Everything works over TLS, and the nodes are the user's alone."""
    with lock_on(ZOOKEEPER, zookeeper.secure_location, **zookeeper_options):
        use_everything()
        lease = get_lock("a", ttl=60).acquire()
        stranger = {**zookeeper_options, "user": "stranger", "password": "another"}
        refusal = pytest.raises(BackendError, match="NoAuthError")
        with lock_on(ZOOKEEPER, zookeeper.secure_location, **stranger), refusal:
            ask_once()
        lease.release()


@needs_zookeeper
@needs_openssl
def test_zookeeper_refuses_an_unknown_certificate(zookeeper, zookeeper_options, certificates):
    """A server that another authority vouches for isn't spoken to, and the error hints at TLS."""
    options = {**zookeeper_options, "ca": certificates.of("stranger"), "timeout": 1.0}
    refusal = pytest.raises(BackendUnavailable, match="certificate")
    with lock_on(ZOOKEEPER, zookeeper.secure_location, **options), refusal:
        ask_once()


@needs_zookeeper
@needs_openssl
def test_zookeeper_s_name_must_be_the_certificate_s(zookeeper, zookeeper_options, tmp_path):
    """A certificate for another name is refused, unless the check is switched off by hand."""
    location = zookeeper.secure_location.replace("127.0.0.1", "localhost")
    refusal = pytest.raises(BackendUnavailable, match="certificate")
    with lock_on(ZOOKEEPER, location, **{**zookeeper_options, "timeout": 1.0}), refusal:
        ask_once()
    with lock_on(ZOOKEEPER, location, **{**zookeeper_options, "check_hostname": False}):
        get_lock("a", ttl=5).acquire().release()


# what is refused before anything is asked


@pytest.mark.parametrize(
    ("backend", "location", "options", "says"),
    [
        (ETCD, "http://a:1", {"user": "shop"}, "'user'.*needs 'password'"),
        (ETCD, "http://a:1", {"password": "x"}, "'password'.*needs 'user'"),
        (ETCD, "http://a:1", {"user": "shop", "password": 7}, "'password'.*must be a non-empty text"),
        (ETCD, "http://a:1", {"username": "shop"}, "'username'.*doesn't know"),
        (ETCD, "http://a:1", {"timeout": 0}, "'timeout'.*seconds above 0"),
        (ETCD, "https://a:1", {"ca_cert": "/nowhere"}, "'ca_cert'.*a file"),
        (ETCD, "https://a:1", {"cert_cert": __file__}, "'cert_cert'.*needs 'cert_key'"),
        (ETCD, "http://a:1", {"ca_cert": __file__}, "'ca_cert'.*is for https"),
        (ETCD, "https://shop:hidden@a:1", {}, "names a user"),
        (ETCD, "ftp://a:1", {}, "write http://host:2379"),
        (ZOOKEEPER, "a:1", {"user": "shop"}, "'user'.*needs 'password'"),
        (ZOOKEEPER, "a:1", {"user": "a:b", "password": "x"}, "'user'.*colon"),
        (ZOOKEEPER, "a:1", {"use_tls": True}, "'use_tls'.*doesn't know"),
        (ZOOKEEPER, "a:1", {"use_ssl": "yes"}, "'use_ssl'.*True or False"),
        (ZOOKEEPER, "a:1", {"ca": __file__}, "'ca'.*only with 'use_ssl'"),
        (ZOOKEEPER, "a:1", {"use_ssl": True, "ca": "/nowhere"}, "'ca'.*a file"),
        (ZOOKEEPER, "a:1", {"use_ssl": True, "certfile": __file__}, "'certfile'.*needs 'keyfile'"),
        (
            ZOOKEEPER,
            "a:1",
            {"use_ssl": True, "verify_certs": False, "check_hostname": True},
            "'check_hostname'.*needs 'verify_certs'",
        ),
        (ZOOKEEPER, "a:1", {"session_timeout": -1}, "'session_timeout'.*seconds above 0"),
        (ZOOKEEPER, "a:1", {"sasl_options": {"username": "shop"}}, "'sasl_options'.*'mechanism'"),
    ],
)
def test_options_that_can_t_be_meant(backend, location, options, says):
    """Each mistake is an error that names the option, before any server is asked; a password isn't shown."""
    with lock_on(backend, location, **options), pytest.raises(ImproperlyConfigured, match=says) as refusal:
        locks["default"]
    assert "hidden" not in str(refusal.value)


def test_sasl_without_its_library(monkeypatch):
    """kazoo's SASL needs a library of its own, and the error says which."""
    monkeypatch.setattr("locking.backends.zookeeper.find_spec", lambda name: None)
    sasl = {"mechanism": "DIGEST-MD5", "username": "shop", "password": "hidden"}
    with (
        lock_on(ZOOKEEPER, "a:1", sasl_options=sasl),
        pytest.raises(ImproperlyConfigured, match="pip install"),
    ):
        locks["default"]


def test_settings_don_t_show_their_secrets():
    """The repr of an alias, which may come into a log, has neither its options nor its address in it."""
    raw = {"BACKEND": ETCD, "LOCATION": "redis://:hidden@a", "OPTIONS": {"password": "hidden"}}
    assert "hidden" not in repr(read_alias("default", raw))
