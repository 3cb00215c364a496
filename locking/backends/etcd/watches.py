"""Waking waiters: one watch for each lock that this process waits for.

The end of a watch's stream wakes all who relied on it, and they ask again; one that says nothing is ended
after a while, too.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import requests

from locking.backends.etcd.client import API, Client
from locking.backends.etcd.entries import below, decoded
from locking.backends.queue.backend import Contender
from locking.utils.background import after_fork, start_thread

QUIET: Final = 5.0
"""Seconds without an event after which a stream is given up: a member that hangs, or has lost the others,
keeps it open and says nothing. Its waiters ask again, and watch at a member that answers.
"""


class Watch:
    """The watch of one lock.

    Attributes:
        seen: the last revision of which it is sure; what came before it isn't reported.
        waiting: the nodes whose end each waiter waits for, until it is gone itself.
    """

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.waiting: WeakKeyDictionary[Contender, frozenset[str]] = WeakKeyDictionary()


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

    def _run(self, prefix: str, watch: Watch, revision: int) -> None:
        try:
            # A stream ends in many ways, such as by silence; its waiters ask again, and see why.
            with suppress(requests.RequestException, OSError, ValueError):
                self._listen(prefix, watch, revision)
        finally:
            with self._mutex:
                if self._watches.get(prefix) is watch:
                    del self._watches[prefix]
                waiting = list(watch.waiting)
            for contender in waiting:
                contender.wake()

    def _listen(self, prefix: str, watch: Watch, revision: int) -> None:
        request = {"create_request": {**below(prefix), "start_revision": revision, "filters": ["NOPUT"]}}
        timeouts = (self._client.timeout, QUIET)  # to connect, and between two events
        url = f"{self._client.preferred}{API}/watch"
        with self._client.session.post(url, json=request, stream=True, timeout=timeouts) as response:
            for line in response.iter_lines(chunk_size=None):  # type: ignore[call-overload]  # as it comes
                result = json.loads(line).get("result", {}) if line else {}
                if result.get("canceled"):
                    return
                events = [event["kv"] for event in result.get("events", ())]
                gone = {decoded(kv["key"]) for kv in events}
                with self._mutex:
                    watch.seen = max([watch.seen, *(int(kv["mod_revision"]) for kv in events)])
                    waiting = list(watch.waiting.items())
                for contender, nodes in waiting:
                    if nodes & gone:
                        contender.wake()
                if not waiting:
                    return
