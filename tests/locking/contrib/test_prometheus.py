"""The metrics: every event is counted once, under the group of its name, in one process and in several."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from django.test.utils import override_settings
from prometheus_client import CollectorRegistry

from locking import BackendUnavailable, Lease, LockLost, LockNotAcquired, get_lock
from locking.contrib import prometheus
from locking.contrib.groups import OTHER, Groups, read_setting, without_ids
from locking.contrib.prometheus import Meter, metrics_view
from locking.core.lease import live_leases
from locking.core.renewal import renew
from locking.testing import simulate_contention, simulate_loss
from locking.testing.contract.processes import child
from tests import ROOT
from tests.locking.support.helpers import take_from
from tests.locking.support.observing import observed_by

LABELS = {"backend": "default", "lock": "order:<id>"}


class Counted:
    """A meter's registry, read by name and labels."""

    def __init__(self, groups=None):
        self.registry = CollectorRegistry()
        self.meter = Meter(groups, registry=self.registry)

    def __call__(self, name, **labels):
        """Return one sample; labels are the group's unless they are given."""
        return self.registry.get_sample_value(name, {**LABELS, **labels})


@pytest.fixture
def counted(memory_locks):
    """What was counted during the test."""
    counted = Counted()
    with observed_by(counted.meter):
        yield counted


def order(number=1, **options):
    """One lock of the group."""
    return get_lock(f"order:{number}", template="order:<id>", **options)


def test_a_hold_is_counted_when_it_begins_and_ends(counted):
    """Acquisitions, wait and hold are counted once, and `held` goes up and down."""
    with order():
        assert counted("locking_held") == 1
    assert counted("locking_acquisitions_total", outcome="acquired") == 1
    assert counted("locking_wait_seconds_count") == counted("locking_hold_seconds_count") == 1
    assert counted("locking_hold_seconds_sum") > 0
    assert counted("locking_held") == 0


def test_refusals_are_counted_by_outcome(counted, backend_down):
    """Contended and unavailable are two outcomes; a wait for nothing is a wait as well."""
    with simulate_contention("order:1"), pytest.raises(LockNotAcquired):
        order(wait=0).acquire()
    with pytest.raises(BackendUnavailable):
        order(backend=backend_down).acquire()
    assert counted("locking_acquisitions_total", outcome="contended") == 1
    assert counted("locking_acquisitions_total", outcome="unavailable", backend="down") == 1
    assert counted("locking_wait_seconds_count") == 1
    assert counted("locking_waiters") == 0


def test_losses_and_broken_holds_are_counted(counted):
    """A lost lease is one loss and one end; to break a hold isn't to end one's own."""
    lease = order().acquire()
    simulate_loss(lease)
    with pytest.raises(LockLost):
        lease.release()
    other = order(2).acquire()
    take_from("order:2", owner=other.owner)
    assert counted("locking_lost_total") == 1
    assert counted("locking_held") == 1
    assert (
        counted.registry.get_sample_value(
            "locking_force_releases_total", {"backend": "default", "lock": "order:*"}
        )
        == 1
    )


def test_renewals_are_counted_by_outcome(counted):
    """Leases, not batches."""
    leases = [order(number).acquire() for number in range(3)]
    simulate_loss(leases[0])
    renew([single for lease in leases for single in lease.leases])
    registry = counted.registry
    labels = {"backend": "default"}
    assert registry.get_sample_value("locking_renewals_total", {**labels, "outcome": "renewed"}) == 2


def test_a_lease_that_its_user_dropped_is_not_held_for_ever(counted):
    """It ends without a word; the next look at what is held takes it off."""
    lock = order()
    lock.acquire()
    assert counted("locking_held") == 1
    del lock
    counted.meter.recount()
    assert counted("locking_held") == 0


def test_a_hold_that_begins_during_a_recount_is_counted(counted, monkeypatch):
    """Another thread acquires between the look at what is held and the comparison with what was counted."""
    taken: list[Lease] = []

    def live_then_one_more():
        before = live_leases()
        taken.append(order().acquire())
        return before

    with order(2):  # so that the group is known
        monkeypatch.setattr(prometheus, "live_leases", live_then_one_more)
        counted.meter.recount()
        assert counted("locking_held") == 2
    taken[0].release()
    assert counted("locking_held") == 0


def test_two_scrapes_at_once_are_both_answered(monkeypatch, tmp_path):
    """The other takes a dead process's file away between the look at the folder and ours."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    file = tmp_path / "gauge_livesum_12345.db"
    file.touch()
    remove = os.remove

    def remove_after_another(path):
        if path == str(file):
            file.unlink()
        remove(path)

    with monkeypatch.context() as patched:
        patched.setattr(prometheus, "start_of", lambda pid: "")
        patched.setattr("os.remove", remove_after_another)
        response = metrics_view(RequestFactory().get("/metrics"))
    assert response.status_code == 200


def test_a_forked_child_does_not_count_its_parents_holds(counted):
    """Its first hold is its only one."""

    def count(pipe):
        with order(2):
            pipe.send(counted("locking_held"))

    with order(), child(count) as forked:
        assert forked.report() == 1


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("order:42", "order:*"),
        ("sku:A-17:red", "sku:A-*:red"),
        ("cart:8d8ac610-566d-4ef0-9c22-186b2a5ed793", "cart:*"),
        ("cart:8D8AC610566D4EF09C22186B2A5ED793", "cart:*"),
        ("file:9f86d081884c7d659a2feaa0c55ad015", "file:*"),
        ("nightly-report", "nightly-report"),
        ("deadbeef:facade", "deadbeef:facade"),
    ],
)
def test_ids_are_taken_out_of_names(name, group):
    """What looks like an id makes no group of its own; a word stays, even one of a to f."""
    assert without_ids(name) == group


def test_there_are_never_more_groups_than_allowed():
    """Names beyond them share one group, and those known before keep theirs."""
    groups = Groups(most=2)
    found = [groups.of(name, None) for name in ("a", "b", "c", "d", "a")]
    assert found == ["a", "b", OTHER, OTHER, "a"]


def test_a_project_groups_names_by_its_own_function():
    """A template comes first, then the function, then the name without ids."""
    groups = Groups(lambda name: "shop" if name.startswith("shop") else None)
    assert groups.of("shop:7", None) == "shop"
    assert groups.of("shop:7", "shop:<id>") == "shop:<id>"
    assert groups.of("bank:7", None) == "bank:*"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"GROUPS": 1}, "unknown key 'GROUPS'"),
        ({"GROUP": "no.such.function"}, "can't be imported"),
        ({"GROUP": 7}, "must be a callable or its dotted path, not 7"),
        ([], "must be a dict"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(setting, message):
    """The error names the value at the start of the process."""
    with override_settings(LOCKING_METRICS=setting), pytest.raises(ImproperlyConfigured, match=message):
        read_setting()


def test_a_scrape_is_answered(counted, monkeypatch):
    """In Prometheus' own format; other methods than GET and HEAD are refused."""
    monkeypatch.setattr(prometheus, "REGISTRY", counted.registry)
    with order():
        answer = metrics_view(RequestFactory().get("/metrics"))
    assert answer["Content-Type"].startswith("text/plain")
    assert 'locking_held{backend="default",lock="order:<id>"} 1.0' in answer.content.decode()
    assert metrics_view(RequestFactory().post("/metrics")).status_code == 405


@contextmanager
def metered_process(folder):
    """A process that has taken two locks and holds one of them."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-m", "tests.locking.support.metered_process"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        yield process
        process.stdin.close()
        assert process.wait(30) == 0


def test_one_scrape_tells_of_all_processes(tmp_path, monkeypatch):
    """Counters and gauges of two processes that share a folder are summed, whichever answers."""
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(metered_process(tmp_path))
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
        page = metrics_view(RequestFactory().get("/metrics")).content.decode()
    assert 'locking_held{backend="default",lock="order:*"} 2.0' in page
    assert 'locking_acquisitions_total{backend="default",lock="order:*",outcome="acquired"} 4.0' in page
    assert 'locking_hold_seconds_count{backend="default",lock="order:*"} 2.0' in page
