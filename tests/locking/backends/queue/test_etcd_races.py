"""What meets on etcd: a release and an extension, two processes that have one owner, two watches."""

import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.test.utils import override_settings

from locking.backends import etcd as module
from locking.backends.base import Busy, Grant
from locking.backends.etcd import NOT_FOUND, EtcdClient, Refused, WatchManager
from locking.backends.queue import QueueEntry
from locking.conf import read_alias
from locking.core.handler import locks
from locking.testing.contract.base import begin, until
from locking.utils.clock import now

PATIENCE = 30.0
NODE = "locks/key/7"


class Server:
    """Keeps the leases and the only key of an etcd; the reply to a write waits until `answers` is set."""

    backend: Any
    hold: Any

    def __init__(self) -> None:
        self.leases, self.key_under = {7}, 7
        self.written, self.answers = threading.Event(), threading.Event()

    @property
    def is_locked(self) -> bool:
        """Whether the key is there: it goes with the lease under which it was written last."""
        return self.key_under in self.leases

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Serve one request."""
        lease = int(body.get("ID", 0))
        if path == "/lease/keepalive":
            return {"result": {"TTL": "10"} if lease in self.leases else {}}
        if path == "/lease/grant":
            self.leases.add(lease)
        elif path == "/lease/revoke":
            self.leases.discard(lease)
        else:
            return self._write(body)
        return {}

    def _write(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self.is_locked:
            return {"succeeded": False}
        self.key_under = int(body["success"][0]["request_put"]["lease"])
        self.written.set()
        assert self.answers.wait(PATIENCE)
        return {"succeeded": True}


class Counted:
    """A mutex that counts who wants it."""

    def __init__(self, mutex: Any) -> None:
        self._mutex, self.wanted = mutex, 0

    def __enter__(self) -> None:
        self.wanted += 1
        self._mutex.__enter__()

    def __exit__(self, *error: object) -> None:
        self._mutex.__exit__(*error)


@pytest.fixture
def server(monkeypatch):
    """A hold of 10 s on a server of the test's own."""
    made = Server()
    entry = {"BACKEND": "locking.backends.etcd.EtcdBackend", "LOCATION": ["http://127.0.0.1:1"]}
    with override_settings(LOCKING={"default": entry}):
        made.backend = locks["default"]
    monkeypatch.setattr(made.backend._client, "ask", made.ask)
    made.hold = QueueEntry(NODE, 1, token=1, deadline=now() + 10, lease=7, length=10)
    made.backend._holds.add("key", "owner", made.hold)
    yield made
    made.backend._holds.discard("key", "owner", made.hold)  # or its release is retried without end


def release_during_an_extension(server, mutex):
    """Release the lock at the moment at which an extension has put another lease under its key."""
    server.hold.mutex = counted = Counted(mutex)
    extension = begin(lambda: server.backend.extend("key", "owner", 60.0))
    assert server.written.wait(PATIENCE)
    release = begin(lambda: server.backend.release("key", "owner"))
    until(lambda: release.done() or counted.wanted == 2, PATIENCE)
    server.answers.set()
    extension.result(timeout=PATIENCE)
    assert release.result(timeout=PATIENCE)


def test_a_release_during_an_extension_releases_the_lock(server):
    """A lock that is released while another thread still extends it is free at once."""
    release_during_an_extension(server, threading.Lock())
    assert not server.is_locked


def test_a_release_that_does_not_wait_for_an_extension_is_found_out(server):
    """A mutant: without the hold's mutex the former lease is revoked, and the key stays under the new one."""
    release_during_an_extension(server, nullcontext())
    assert server.is_locked


class Waiter:
    """What a watch wakes."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake


def register(manager, woken, name, revision):
    """Have a waiter watch, which has read the queue at this revision."""
    contender: Any = Waiter(lambda: woken.append(name))
    manager.register(contender, frozenset({NODE}), revision)


@pytest.fixture
def unheard(monkeypatch):
    """Watches whose stream says nothing."""
    monkeypatch.setattr(module, "start_thread", lambda name, run: True)
    return WatchManager(None)  # type: ignore[arg-type]


def test_a_watch_that_began_after_a_waiter_read_the_queue_wakes_it(unheard):
    """What ended between a waiter's look and the beginning of another one's watch is not waited for."""
    woken: list[str] = []
    register(unheard, woken, "second", 12)  # it has read the queue later, and begins the watch
    register(unheard, woken, "first", 10)
    assert woken == ["first"]


def test_a_watch_wakes_no_other_without_need(unheard):
    """A waiter that read the queue at the watch's revision, or later, misses nothing."""
    woken: list[str] = []
    for name, revision in (("first", 10), ("second", 10), ("third", 12)):
        register(unheard, woken, name, revision)
    assert woken == []


CREATED = b'{"result":{"created":true}}\n'
BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(CREATED), CREATED)


@pytest.mark.parametrize("answer", [b"", BEGUN], ids=["no answer", "no event"])
def test_a_watch_that_says_nothing_wakes_its_waiters_after_a_while(monkeypatch, caplog, answer):
    """A member that hangs, or is cut off from the others, keeps its stream open: they ask elsewhere."""
    caplog.set_level("INFO", "locking")
    monkeypatch.setattr(module, "QUIET", 0.1, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as door:
        location = f"http://127.0.0.1:{door.getsockname()[1]}"
        client = EtcdClient(read_alias("a", {"LOCATION": location, "OPTIONS": {"timeout": PATIENCE}}))
        manager, woken = WatchManager(client), threading.Event()
        contender: Any = Waiter(woken.set)
        manager.register(contender, frozenset({NODE}), 1)
        with door.accept()[0] as member:
            member.sendall(answer)
            assert woken.wait(PATIENCE)
        assert not manager.listens, "the next question begins another"
        reported = [record for record in caplog.records if "locks/key/" in record.getMessage()]
        assert not reported, "a lock that is kept for a while is nothing to report"
        client.session.close()


class Keys:
    """Keeps keys and leases as etcd does; a lease never ends by itself."""

    def __init__(self) -> None:
        self.leases: dict[int, int] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        self.revision = 0

    def under_the_key(self) -> list[int]:
        """Return the length of the lease of each key, in seconds."""
        return [self.leases[int(kv["lease"])] for kv in self._found()["kvs"]]

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Serve one request."""
        lease = int(body.get("ID", 0))
        if path == "/kv/txn":
            return self._transact(body)
        if path == "/lease/grant":
            if lease in self.leases:
                raise Answered("lease already exists")
            self.leases[lease] = int(body["TTL"])
        elif path == "/lease/keepalive":
            return {"result": {"TTL": str(self.leases.get(lease, 0))}}
        elif path == "/lease/revoke" and self.leases.pop(lease, None) is None:
            raise Answered("requested lease not found", NOT_FOUND)
        return {**self._found(), "header": {"revision": self.revision}}

    def _found(self) -> dict[str, Any]:
        live = [kv for kv in self.keys.values() if int(kv["lease"]) in self.leases]
        self.keys = {kv["key"]: kv for kv in live}
        return {"kvs": sorted(live, key=lambda kv: int(kv["create_revision"]))}

    def _transact(self, body: dict[str, Any]) -> dict[str, Any]:
        self._found()
        (condition,) = body["compare"]
        created = self.keys.get(condition["key"], {"create_revision": "0"})["create_revision"]
        succeeded = created == condition["create_revision"]
        self.revision += 1
        for put in [part["request_put"] for part in body["success"] if succeeded and "request_put" in part]:
            first = str(self.revision) if created == "0" else created
            self.keys[put["key"]] = {**put, "create_revision": first}
        answer = {"succeeded": succeeded, "header": {"revision": self.revision}}
        return {**answer, "responses": [{"response_range": self._found()}]}


class Answered(Refused):
    """An error as answer."""

    def __init__(self, text: str, code: int | None = None) -> None:
        self.code, self.text = code, text


@pytest.fixture
def two_processes(monkeypatch):
    """The backends of two processes on one server, and the server."""
    entry, server, made = {"BACKEND": "locking.backends.etcd.EtcdBackend"}, Keys(), list[Any]()
    for port in (1, 2):
        with override_settings(LOCKING={"default": {**entry, "LOCATION": [f"http://127.0.0.1:{port}"]}}):
            made.append(locks["default"])
        monkeypatch.setattr(made[-1]._client, "ask", server.ask)
    yield (*made, server)
    for backend in made:
        backend._holds.reset()  # or their ends are sent without end to servers that aren't there


def acquire_twice(queued, running):
    """Take a lock for 5 s in one process, and for a minute under the same owner in another."""
    for backend, ttl in ((queued, 5.0), (running, 60.0)):
        assert isinstance(backend.try_acquire("key", "owner", ttl), Grant)


def test_an_owner_that_acquires_again_has_a_lease_of_its_new_length(two_processes):
    """The server keeps the lock of a queued task that runs by now for as long as its process believes."""
    *processes, server = two_processes
    acquire_twice(*processes)
    assert server.under_the_key() == [60]


def test_the_process_that_was_first_ends_its_own_lease_only(two_processes):
    """Where the time in the queue runs out, the task that runs by then keeps the lock."""
    queued, running, server = two_processes
    acquire_twice(queued, running)
    queued._withdraw(queued._holds.get("key", "owner"))
    assert server.under_the_key() == [60]
    assert running.release("key", "owner")
    assert server.under_the_key() == []


def test_the_process_that_was_first_releases_what_the_second_has(two_processes):
    """A release by the owner ends its hold, under whatever lease and by whichever process."""
    queued, running, server = two_processes
    acquire_twice(queued, running)
    assert queued.release("key", "owner")
    assert server.under_the_key() == []
    assert not queued.release("key", "owner")


def test_a_waiter_renews_its_lease_before_its_last_look_at_the_queue(two_processes, monkeypatch):
    """A lease that is about to end, and isn't renewed, would be granted for longer than it lasts."""
    holder, backend, server = two_processes
    monkeypatch.setattr(backend._watches, "register", lambda *watched: None)
    holder.try_acquire("key", "owner", 5.0)
    waiter, paths = backend.waiter("key", "waiter", 5.0), list[str]()
    assert isinstance(waiter.try_acquire(queue=True), Busy)
    holder.release("key", "owner")

    def ask(path, **body):
        paths.append(path)
        return server.ask(path, **body)

    monkeypatch.setattr(backend._client, "ask", ask)
    assert isinstance(waiter.try_acquire(queue=False), Grant)
    assert paths == ["/lease/keepalive", "/kv/range"]
    waiter.leave()


def test_a_lease_that_two_processes_share_is_found_out(two_processes, monkeypatch):
    """The mutant takes the key as it is: its lease is too short, and the first process ends it."""
    queued, running, server = two_processes
    monkeypatch.setattr(running, "_extended", lambda owner, hold, ttl: True)
    acquire_twice(queued, running)
    assert server.under_the_key() == [5]
    queued._withdraw(queued._holds.get("key", "owner"))
    assert server.under_the_key() == []
