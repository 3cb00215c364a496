"""Waking waiters: one watch, of all locks, for each process that waits.

The end of its stream wakes all who wait, and they ask again; one that says nothing is ended after a while,
too.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import requests

from locking.backends.etcd.client import API, EtcdClient, below, decoded
from locking.backends.queue.backend import Contender
from locking.utils.background import after_fork, start_thread

QUIET: Final = 5.0
"""Seconds without an event after which a stream is given up: a member that hangs, or has lost the others,
keeps it open and says nothing. Its waiters ask again, and watch at a member that answers.
"""


class WatchManager:
    """The watch of one backend, on all its keys.

    Attributes:
        waiting: the nodes whose end each waiter waits for, until it is gone itself.
        listens: a thread reads the stream.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: threads don't survive a fork."""
        self._mutex = threading.Lock()
        self.waiting: WeakKeyDictionary[Contender, frozenset[str]] = WeakKeyDictionary()
        self.listens, self._seen = False, 0  # up to which revision it has heard, or need not hear

    def register(self, contender: Contender, nodes: frozenset[str], revision: int) -> None:
        """Wake `contender` when one of `nodes`, seen at `revision`, ends; it may be woken without need."""
        with self._mutex:
            self.waiting[contender] = nodes
            if not self.listens:  # without a thread this waiter asks by the clock, and tries again
                self._seen = revision
                run = partial(self._run, revision + 1)
                self.listens = start_thread("locking-listen-etcd", run) is not None
            missed = self._seen > revision
        if missed:  # something may have ended after the queue was read and before this call, or the watch
            contender.wake()

    def _run(self, revision: int) -> None:
        try:
            # A stream ends in many ways, such as by silence; its waiters ask again, and see why.
            with suppress(requests.RequestException, OSError, ValueError):
                self._listen(revision)
        finally:
            with self._mutex:
                self.listens, waiting = False, list(self.waiting)
            for contender in waiting:
                contender.wake()

    def _listen(self, revision: int) -> None:
        watched = {**below(self._client.prefix), "start_revision": revision, "filters": ["NOPUT"]}
        timeouts = (self._client.timeout, QUIET)  # to connect, and between two events
        url, request = f"{self._client.preferred}{API}/watch", {"create_request": watched}
        with self._client.session.post(url, json=request, stream=True, timeout=timeouts) as response:
            for line in response.iter_lines(chunk_size=None):  # type: ignore[call-overload]  # as it comes
                result = json.loads(line).get("result", {}) if line else {}
                if result.get("canceled"):
                    return
                events = [event["kv"] for event in result.get("events", ())]
                gone = {decoded(kv["key"]) for kv in events}
                with self._mutex:
                    self._seen = max([self._seen, *(int(kv["mod_revision"]) for kv in events)])
                    waiting = list(self.waiting.items())
                for contender, nodes in waiting:
                    if nodes & gone:
                        contender.wake()
                if not waiting:
                    return
