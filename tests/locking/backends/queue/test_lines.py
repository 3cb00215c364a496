"""The line of a lock as pure functions: who has it, who waits for whom, and how nodes are named."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import AuthFailedError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.retry import ForceRetryError

from locking.backends import zookeeper as module
from locking.backends.etcd import EtcdBackend, read_urls
from locking.backends.queue import QueueEntry, blockers_of, holders_of, key_of
from locking.backends.zookeeper import (
    TAGS,
    ZooKeeperBackend,
    ZooKeeperSession,
    described,
    encode,
    guid,
    parse,
    read_location,
    write_data,
)
from locking.conf import read_alias
from locking.exceptions import BackendUnavailable
from locking.keys.names import check_name
from locking.testing.contract.base import until
from locking.utils.clock import now
from locking.utils.ownership import new_owner

PATIENCE = 30.0
KINDS = st.lists(st.sampled_from(["read", "write"]), max_size=8)


def line_of(*kinds, permits=0):
    """A line of these kinds, numbered in order."""
    return [QueueEntry(f"n{i}", i, kind, permits) for i, kind in enumerate(kinds)]


@given(KINDS)
def test_a_holder_watches_no_one_and_a_waiter_watches_one(kinds):
    """A reader or writer holds exactly when it has no one to wait for; a waiter watches one, who came
    before.
    """
    line = line_of(*kinds)
    holders = holders_of(line)
    for contender in line:
        blockers = blockers_of(line, contender)
        assert (contender in holders) == (not blockers)
        assert len(blockers) <= 1
        assert all(blocker.order < contender.order for blocker in blockers)


@given(KINDS)
def test_a_writer_is_alone(kinds):
    """Holders are one writer, or readers only."""
    held = [contender.kind for contender in holders_of(line_of(*kinds))]
    assert held == ["write"] or set(held) <= {"read"}


@given(st.integers(1, 5), st.integers(0, 9))
def test_a_semaphore_has_as_many_holders_as_permits(permits, number):
    """The first in the queue have the permits; each of the others watches as many before it."""
    line = line_of(*["semaphore"] * number, permits=permits)
    late = QueueEntry("late", number, "semaphore", permits)
    assert list(holders_of(line)) == line[:permits]
    assert [bool(blockers_of(line, each)) for each in line] == [i >= permits for i in range(number)]
    assert bool(blockers_of(line, late)) == (number >= permits)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=7), st.data())
def test_a_semaphores_waiter_is_woken_before_it_has_a_permit(permits, data):
    """It watches one that must leave before, in any order of leaving and with any number of permits."""
    line = [QueueEntry(f"n{i}", i, "semaphore", number) for i, number in enumerate(permits)]
    waiter, left = line[-1], list(line)
    watched = set(blockers_of(line, waiter))
    while watched and watched <= set(left):
        assert waiter not in holders_of(left)
        left.remove(data.draw(st.sampled_from(left[:-1])))


@given(st.text(min_size=1, max_size=50))
def test_every_name_has_a_folder_of_its_own(name):
    """Encoding is undone by decoding, and leaves nothing that ZooKeeper refuses."""
    try:
        check_name(name)
    except ValueError:
        return
    folder = encode(name)
    assert key_of(folder) == key_of(f"{folder}%rw") == key_of(f"{folder}%semaphore") == name
    assert "/" not in folder
    assert folder not in (".", "..", "zookeeper")
    assert all(0x1F < ord(char) < 0xD800 and not 0x7E < ord(char) < 0xA0 for char in folder)


def test_nodes_of_curator_and_kazoo_are_read():
    """Both libraries' nodes stand in the line by their number, and strangers are passed over."""
    children = [
        "_c_5b1c-lock-0000000012", "3f2b__lock__0000000003", "77aa__rlock__0000000004", "leases",
        "_c_1-5-lease-0000000020",
    ]  # fmt: skip
    line = parse("/locks/a", children)
    assert [(each.order, each.kind, each.permits) for each in line] == [
        (3, "write", 0), (4, "read", 0), (12, "lock", 0), (20, "semaphore", 5),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["lock", "read", "write", "semaphore"])
def test_an_owners_node_is_found_again(kind):
    """The node's name begins with what is made of the owner, so a lost reply costs nothing."""
    permits = "3-" * (kind == "semaphore")
    (found,) = parse("/f", [f"{guid('a:1')}{permits}{TAGS[kind]}0000000001"])
    assert found.kind == kind
    assert found.node.startswith(f"/f/{guid('a:1')}")
    assert not found.node.startswith(f"/f/{guid('a:2')}")


def test_data_that_is_not_ours_is_no_error():
    """Another client's node is its own owner, and its lease has no length."""
    figures = Mock(ctime=1000, mtime=2000, czxid=7)

    def read(data: bytes) -> QueueEntry:
        (entry,) = parse("/f", ["_c_9-lock-0000000001"])
        return described(entry, data, figures)

    ours = read(write_data("a:1", 2.5))
    assert (ours.owner, ours.ttl, ours.token, ours.since, ours.renewed) == ("a:1", 2.5, 7, 1.0, 2.0)
    for data in (b"", b"192.168.0.1", b"[1]", b"{}", b'"text"', b"\xff"):
        other = read(data)
        assert (other.owner, other.ttl, other.token) == ("_c_9-lock-0000000001", None, 7)


@pytest.mark.parametrize(
    ("location", "read"),
    [
        ("zk1:2181,zk2:2181", ("zk1:2181,zk2:2181", "/locks")),
        ("zk://zk1:2181/shop/locks/", ("zk1:2181", "/shop/locks")),
        (["zk1:2181", "zk2:2181/x"], ("zk1:2181,zk2:2181", "/x")),
    ],
)
def test_locations_of_zookeeper(location, read):
    """Hosts and folder, as text or list."""
    assert read_location(read_alias("a", {"LOCATION": location})) == read


@pytest.mark.parametrize(("read", "location"), [(read_location, None), (read_location, "/x")])
def test_a_location_without_a_server_is_refused(read, location):
    """The error names the setting and shows what to write."""
    with pytest.raises(ImproperlyConfigured, match=r"LOCKING\['a'\]"):
        read(read_alias("a", {"LOCATION": location}))


@pytest.mark.parametrize("location", [None, [], "etcd1:2379", ["http://a:1", "b:2"]])
def test_a_location_of_etcd_needs_urls(location):
    """Missing or without a scheme: refused before any request."""
    with pytest.raises(ImproperlyConfigured, match="http://"):
        read_urls(read_alias("a", {"LOCATION": location}))


@contextmanager
def agreeing_to(seconds: float) -> Iterator[str]:
    """The address of a server that grants every client this timeout, one client at a time."""
    agreed = struct.pack(">iiqi", 0, int(seconds * 1000), 7, 16) + bytes(17)

    def serve() -> None:
        with suppress(OSError):  # the door was shut
            while True:
                client, _ = door.accept()
                with client, suppress(OSError):
                    client.recv(4096)
                    client.sendall(struct.pack(">i", len(agreed)) + agreed)
                    client.recv(4096)  # that it is over: then it is

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{door.getsockname()[1]}"
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def session_at(address: str, session_timeout: float, timeout: float, **options: Any) -> Any:
    """A session that hasn't begun."""
    options = {"session_timeout": session_timeout, "timeout": timeout, **options}
    return ZooKeeperSession(read_alias("a", {"LOCATION": address, "OPTIONS": options}))


@contextmanager
def started(address: str, session_timeout: float, **options: Any) -> Iterator[ZooKeeperSession]:
    """A session that is stopped after use."""
    session = session_at(address, session_timeout, PATIENCE, **options)
    try:
        yield session
    finally:
        session.stop()


def believed_after_an_answer(wanted: float, agreed: float) -> float:
    """Return for how many seconds a session is believed in after a question that was answered."""
    with agreeing_to(agreed) as address, started(address, wanted) as session:
        session.client()
        session.confirm(session.number, 100.0)
        return session.believed_until(session.number) - 100.0


@pytest.mark.parametrize(("wanted", "agreed"), [(120.0, 40.0), (1.0, 4.0), (10.0, 10.0)])
def test_a_session_is_believed_in_for_the_timeout_that_the_servers_agreed_to(wanted, agreed):
    """They allow 2 to 20 ticks, whatever was asked for, and end the session by that."""
    assert believed_after_an_answer(wanted, agreed) == pytest.approx(agreed * module.SESSION_TRUST_RATIO)


def test_a_session_believed_in_for_the_timeout_that_was_asked_for_is_found_out(monkeypatch):
    """A mutant: as kazoo asks by itself, a session that ends after 40 s is believed in for 80."""
    monkeypatch.setattr(module.ZooKeeperClient, "_invoke", lambda client, *request: client._ask(*request))
    assert believed_after_an_answer(120.0, 40.0) > 40.0


def test_a_session_that_a_server_agrees_to_for_less_is_believed_in_for_less():
    """A hold ends sooner on a server with a lower limit, and no later by what another session has."""
    session = session_at("localhost:1", 6.0, 1.0)
    session._client = Client(1)
    session.confirm(1, 100.0)
    session._client._session_timeout = 3000
    assert session.believed_until(1) == 102.0
    session._client = Client(2)
    session._client._session_timeout = 60_000  # what the next one is agreed to for
    assert session.believed_until(1) == 104.0


class Client:
    """A kazoo client as far as `Session` asks it who it is."""

    _session_timeout = 6000

    def __init__(self, number: int) -> None:
        self._session_id = number
        self.connected = True

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """See kazoo."""
        return (self._session_id, b"") if self.connected else None


def test_an_answer_in_a_later_session_proves_nothing_for_the_earlier():
    """A question that waited for a connection, and was answered in a new session, keeps no old hold alive."""
    session = session_at("localhost:1", 6.0, 1.0)
    session._client = Client(1)
    session.confirm(1, 100.0)
    assert session.believed_until(1) == 104.0
    session._client = Client(2)
    session.confirm(1, 200.0)  # asked in the first, answered in the second
    assert session.believed_until(1) <= 104.0
    session.confirm(2, 200.0)
    assert (session.believed_until(2), session.believed_until(1)) == (204.0, 0.0)


def test_a_hold_that_zookeeper_does_not_answer_for_stays_watched(monkeypatch):
    """A renewal without an answer is unknown, and leaves the hold's deadline and its place in the list."""
    backend = ZooKeeperBackend(read_alias("a", {"LOCATION": "localhost:1"}))
    holds = {each: QueueEntry(f"/n{each}", 1, deadline=now() + 60) for each in ("gone", "kept", "mute")}
    for owner, hold in holds.items():
        backend._holds.add("k", owner, hold)
    figures = Mock(czxid=1, ephemeralOwner=7)
    outcomes = iter([None, figures, BackendUnavailable("no answer")])

    def ask(*_):
        outcome = next(outcomes)
        if isinstance(outcome, BackendUnavailable):
            raise outcome
        return [outcome]

    monkeypatch.setattr(backend._session, "ask", ask)
    deadline = holds["mute"].deadline
    answers = backend.extend_many([("k", owner, 90.0) for owner in ("gone", "kept", "mute")])
    assert answers == [False, True, None]
    assert backend._holds.get("k", "gone") is None
    assert holds["kept"].deadline > deadline
    assert holds["mute"].deadline == deadline
    backend._holds.reset()


def test_a_hold_that_ends_without_a_connection_is_ended_when_there_is_one_again(monkeypatch):
    """Its session lives on with its nodes while kazoo looks for another server; nothing else ends them."""
    backend: Any = ZooKeeperBackend(read_alias("a", {"LOCATION": "localhost:1"}))
    backend._session._client = client = Client(7)
    reported = []

    def ask(*requests):
        if not client.connected:
            raise BackendUnavailable("no connection")
        reported.append(len(requests))
        return [None] * len(requests)

    monkeypatch.setattr(backend._session, "ask", ask)
    client.connected = False
    with pytest.raises(BackendUnavailable):  # so that the expirer calls again
        backend._withdraw(QueueEntry("/k/n", 1, token=1, deadline=now(), lease=7))
    client.connected = True
    backend._withdraw(QueueEntry("/k/n", 1, token=1, deadline=now(), lease=7))
    assert reported == [2], "the node, and its folder"


def test_a_hold_whose_session_is_over_asks_for_nothing_at_its_end(monkeypatch):
    """Its node went with the session, and a client that was stopped must not start for it."""
    backend: Any = ZooKeeperBackend(read_alias("a", {"LOCATION": "localhost:1"}))
    monkeypatch.setattr(backend._session, "ask", lambda *requests: pytest.fail("asked"))
    for client in (None, Client(8)):
        backend._session._client = client
        assert not backend._withdraw(QueueEntry("/k/n", 1, token=1, deadline=now(), lease=7))


def pauses_of(options: dict[str, Any]) -> list[float]:
    """Return the seconds between the first 20 rounds over all servers in which a client finds none."""
    client = module.ZooKeeperClient(**session_at("localhost:1", 10.0, 1.0, **options)._arguments)
    retry, pauses = client._connection.retry_sleeper.copy(), list[float]()
    retry.interrupt, retry.sleep_func = None, pauses.append

    def look() -> None:
        if len(pauses) < 20:
            raise ForceRetryError

    retry(look)
    return pauses


def test_a_lost_connection_is_looked_for_several_times_in_a_session():
    """However long an outage was, the locks are back a moment later: kazoo's pauses double up to an hour."""
    assert max(pauses_of({})) < 1.0


def test_an_aliass_own_way_to_look_for_a_lost_connection_counts():
    """The same for a handler's sleep; kazoo accepts no other handler."""
    assert min(pauses_of({"connection_retry": {"max_tries": -1, "delay": 5.0}})) > 1.0
    handler = SequentialThreadingHandler()
    handler.sleep_func = lambda seconds: None
    assert max(pauses_of({"handler": handler})) < 1.0


@pytest.mark.parametrize(
    ("what", "number", "error"),
    [
        ("create_socket_pair", 1, OSError(errno.EMFILE, "Too many open files")),
        *(("spawn", number, RuntimeError("can't start new thread")) for number in (1, 2, 3)),
    ],
)
def test_a_client_that_could_not_start_is_not_kept(monkeypatch, what, number, error):
    """A moment without a free descriptor or thread is an outage of that moment, and leaves no thread."""
    calls, original = list[object](), getattr(SequentialThreadingHandler, what)

    def short_of_it(handler, *arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise error
        return original(handler, *arguments)

    monkeypatch.setattr(SequentialThreadingHandler, what, short_of_it)
    with agreeing_to(10.0) as address, started(address, 10.0) as session:
        before = set(threading.enumerate())
        with pytest.raises(BackendUnavailable):
            session.client()
        assert not set(threading.enumerate()) - before  # one of another test may have ended meanwhile
        assert session.client().connected


def test_a_client_that_has_given_up_is_replaced(monkeypatch):
    """kazoo's loop ends for good where a server that restarts breaks off a login."""
    tries = list[object]()

    def log_in(connection, *arguments):
        tries.append(connection)
        if len(tries) == 1:
            raise AuthFailedError("Connection dropped in SASL")

    monkeypatch.setattr(ConnectionHandler, "_authenticate_with_sasl", log_in)
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    sasl = {"mechanism": "DIGEST-MD5"}
    with agreeing_to(10.0) as address, started(address, 10.0, sasl_options=sasl) as session:
        given_up = session._current()
        until(lambda: given_up.has_given_up, PATIENCE)
        assert session.client() is not given_up
        assert session.connected()


QUEUES = {ZooKeeperBackend: "localhost:1", EtcdBackend: "http://localhost:1"}


@pytest.mark.parametrize("backend", QUEUES)
def test_a_waiter_whose_leaving_was_not_heard_is_unsettled(backend, monkeypatch):
    """Its entry outlives a break of the connection, and would have its turn: it is released later."""
    made = backend(read_alias("a", {"LOCATION": QUEUES[backend]}))
    waiter = made.waiter("k", new_owner(), 30.0)
    monkeypatch.setattr(made, "release", lambda key, owner: True)
    waiter.leave()
    assert not waiter.unsettled

    def silent(key: str, owner: str) -> bool:
        raise BackendUnavailable("no answer")

    monkeypatch.setattr(made, "release", silent)
    waiter.leave()
    assert waiter.unsettled
