"""Waking waiters: one watch for each lock that this process waits for.

etcd3gw's own watch starts a pool of threads for each and doesn't say when its stream has ended; a waiter
would sleep on. Here the end of a stream wakes all who relied on it, and they ask again; one that says nothing
is ended after a while, too.
"""

from __future__ import annotations

import json
import socket
import threading
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import partial
from typing import Any, Final

import requests

from locking.backends.etcd.client import Client
from locking.backends.queue.backend import Contender
from locking.utils.background import after_fork, start_thread

QUIET: Final = 5.0
"""Seconds without an event after which a stream is given up: a member that hangs, or has lost the others,
keeps it open and says nothing. Its waiters ask again, and watch at a member that answers.
"""


def encoded(text: str) -> str:
    """Return a key or value as the gateway wants it."""
    return b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    """Return what the gateway sent."""
    return b64decode(text).decode(errors="replace")


def below(prefix: str) -> dict[str, Any]:
    """Return the range of all keys that begin with `prefix`, as the gateway wants it."""
    raw = prefix.encode()
    end = raw[:-1] + bytes([raw[-1] + 1])  # the prefix ends with `/`, never with 0xFF
    return {"key": encoded(prefix), "range_end": b64encode(end).decode()}


class Watch:
    """The watch of one lock: its waiters, each with the nodes whose end it waits for.

    Attributes:
        seen: the last revision of which it is sure; what came before it isn't reported.
    """

    def __init__(self, seen: int) -> None:
        self.waiting: dict[Contender, frozenset[str]] = {}
        self.seen = seen
        self.ended = False
        self.response: requests.Response | None = None


class WatchManager:
    """The watches of one backend."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: threads don't survive a fork."""
        self._mutex = threading.Lock()
        self._watches: dict[str, Watch] = {}

    def register(self, prefix: str, contender: Contender, nodes: frozenset[str], revision: int) -> None:
        """Wake `contender` when one of `nodes`, seen at `revision`, ends; it may be woken without need."""
        with self._mutex:
            watch = self._watches.get(prefix)
            if watch is None:
                watch = Watch(revision)
                if not start_thread("locking-listen-etcd", partial(self._run, prefix, watch, revision + 1)):
                    return  # this waiter asks by the clock, and tries again
                self._watches[prefix] = watch
            watch.waiting[contender] = nodes
            missed = watch.seen > revision
        if missed:  # something may have ended after the queue was read and before this call, or the watch
            contender.wake()

    def forget(self, prefix: str, contender: Contender) -> None:
        """Wake `contender` no more; the last one ends the watch."""
        with self._mutex:
            watch = self._watches.get(prefix)
            if watch is None or watch.waiting.pop(contender, None) is None or watch.waiting:
                return
            del self._watches[prefix]
        _end(watch)

    def close(self) -> None:
        """End every watch."""
        with self._mutex:
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            _end(watch)

    def _run(self, prefix: str, watch: Watch, revision: int) -> None:
        try:
            # A stream ends in many ways, such as by silence; its waiters ask again, and see why.
            with suppress(requests.RequestException, OSError, ValueError, AttributeError):
                self._listen(prefix, watch, revision)
        finally:
            with self._mutex:
                if self._watches.get(prefix) is watch:
                    del self._watches[prefix]
                waiting = list(watch.waiting)
            for contender in waiting:
                contender.wake()

    def _listen(self, prefix: str, watch: Watch, revision: int) -> None:
        member = self._client.preferred()
        request = {"create_request": {**below(prefix), "start_revision": revision, "filters": ["NOPUT"]}}
        timeouts = (self._client.timeout, QUIET)  # to connect, and between two events
        url = member.get_url("/watch")
        with member.session.post(url, json=request, stream=True, timeout=timeouts) as response:
            watch.response = response
            if watch.ended:
                return
            for line in response.iter_lines(chunk_size=None):  # type: ignore[call-overload]  # as it comes
                if not line:
                    continue
                result = json.loads(line).get("result", {})
                if result.get("canceled"):
                    return
                self._wake(watch, result)

    def _wake(self, watch: Watch, result: dict[str, Any]) -> None:
        events = [event["kv"] for event in result.get("events", ())]
        gone = {decoded(kv["key"]) for kv in events}
        with self._mutex:
            watch.seen = max([watch.seen, *(int(kv["mod_revision"]) for kv in events)])
            woken = [contender for contender, nodes in watch.waiting.items() if nodes & gone]
        for contender in woken:
            contender.wake()


def _end(watch: Watch) -> None:
    """End a stream that a thread reads: only the socket's shutdown wakes that thread."""
    watch.ended = True
    if watch.response is None:
        return
    with suppress(OSError, AttributeError, ValueError):
        raw = watch.response.raw
        connection = raw.connection or raw._original_response.fp.raw._sock
        sock = getattr(connection, "sock", connection)
        sock.shutdown(socket.SHUT_RDWR)
