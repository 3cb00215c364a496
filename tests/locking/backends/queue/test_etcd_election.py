"""An election of an etcd cluster takes longer than one request: a held lease is extended all the same."""

from typing import Any

import pytest
from django.test.utils import override_settings

from locking import BackendUnavailable
from locking.backends.etcd import backend as module
from locking.backends.lease_expirer import LocalLease
from locking.core.handler import locks
from locking.utils.clock import now

ETCD = "locking.backends.etcd.EtcdBackend"
THREE = ["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]


class Cluster:
    """Answers like a cluster without a leader to so many requests, each of which takes the whole time-out."""

    def __init__(self, monkeypatch, location=THREE):
        with override_settings(LOCKING={"default": {"BACKEND": ETCD, "LOCATION": location}}):
            backend: Any = locks["default"]
        self.backend = backend
        self.without_leader, self.asked, self._passed = 0, 0, 0.0
        self._held: Any = None
        monkeypatch.setattr(self.backend._client, "ask", self.ask)
        monkeypatch.setattr(module, "now", lambda: now() + self._passed)

    def hold(self, seconds):
        """Let the backend hold a lock for so long."""
        self._held = LocalLease("node", 1, now() + seconds, session=7, length=60)
        self.backend._holds.add("key", "owner", self._held)

    def forget(self):
        """Leave no hold whose release would be retried at servers that aren't there."""
        self.backend._holds.discard("key", "owner", self._held)

    def ask(self, path, **body):
        """Answer one request, by the clock 3 s later if there is no leader."""
        self.asked += 1
        if self.asked <= self.without_leader:
            self._passed += 3.0
            raise BackendUnavailable("no leader")
        return {"result": {"TTL": "60"}, "succeeded": True}


@pytest.fixture
def cluster(monkeypatch):
    """Three members that elect."""
    made = Cluster(monkeypatch)
    yield made
    made.forget()


def test_an_extension_waits_for_the_election(cluster):
    """A lease of a minute is extended although no leader answers the first request."""
    cluster.hold(60)
    cluster.without_leader = 1
    assert cluster.backend.extend("key", "owner", 60.0)


def test_an_extension_that_asks_once_is_found_out(cluster, monkeypatch):
    """A mutant: without time for an election the same lease isn't extended."""
    monkeypatch.setattr(module, "ELECTION", 0.0)
    with pytest.raises(BackendUnavailable):
        test_an_extension_waits_for_the_election(cluster)


def test_an_election_is_not_waited_for_beyond_the_lease(cluster):
    """With four seconds left of the lease the second request is the last."""
    cluster.hold(4)
    cluster.without_leader = 1000
    with pytest.raises(BackendUnavailable):
        cluster.backend.extend("key", "owner", 60.0)
    assert cluster.asked == 2


def test_a_cluster_that_is_down_keeps_no_waiter_for_a_whole_lease(cluster):
    """An extension of an hour's lease is given up when an election must be over."""
    cluster.hold(3600)
    cluster.without_leader = 1000
    with pytest.raises(BackendUnavailable):
        cluster.backend.extend("key", "owner", 3600.0)
    assert cluster.asked == 5


def test_the_watchdog_asks_once(cluster):
    """Renewals aren't held up: the watchdog comes again by itself."""
    cluster.hold(60)
    cluster.without_leader = 1
    with pytest.raises(BackendUnavailable):
        cluster.backend.extend_many([("key", "owner", 60.0)])
    assert cluster.asked == 1


def test_a_single_server_has_no_election(monkeypatch):
    """One server that doesn't answer is an outage, reported after its time-out."""
    alone = Cluster(monkeypatch, THREE[0])
    alone.hold(60)
    alone.without_leader = 1
    with pytest.raises(BackendUnavailable):
        alone.backend.extend("key", "owner", 60.0)
    alone.forget()
