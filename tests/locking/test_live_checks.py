"""The live checks: they find what is broken on real servers, and say how to fix it."""

from __future__ import annotations

import re
import time
from typing import Any
from weakref import WeakSet

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections
from django.test.utils import override_settings

from locking import get_lock, get_read_lock, get_semaphore, live_checks
from locking.backends.base import Finding
from locking.backends.capabilities import Diagnosis
from locking.backends.memory import MemoryBackend
from locking.backends.redis import diagnosis
from locking.backends.redis.protocol import ReplicaAck
from locking.contrib.redisson import get_fair_lock
from locking.inspection.held import holds_of
from locking.models import Fence
from tests.backends import any_engine

pytestmark = pytest.mark.django_db(transaction=True)

MEGABYTE = 1_000_000


def findings(setting="LOCKING", alias="default"):
    """What is found of one backend or database, by subject; the last word where there are several."""
    place = f"{setting}[{alias!r}]"
    return {finding.subject: finding for where, finding in live_checks.examine() if where == place}


def messages():
    """What `manage.py check --tag locking_live` says, by id."""
    return {message.id: message for message in run_checks(tags=[live_checks.LIVE_TAG])}


def findings_of_a_user_without(command, own_redis, locks_on):
    """What is found when the locks' Redis user may do everything but that."""
    own_redis.client.acl_setuser(
        "app", enabled=True, nopass=True, keys="*", channels="*", commands=["+@all", f"-{command}"]
    )
    locks_on(own_redis.url, username="app", password="any")
    found = findings()
    own_redis.client.acl_deluser("app")
    return found


@pytest.fixture(autouse=True)
def no_database_of_other_tests(monkeypatch):
    """Leave out those that other modules registered for the whole run: this one may not ask them."""
    monkeypatch.setattr(connections, "settings", {"default": connections.settings["default"]})


@pytest.fixture(autouse=True)
def patience_with_a_busy_machine(monkeypatch):
    """However long a request takes beside other tests, it is no finding of this one."""
    monkeypatch.setattr(live_checks, "SLOW", 60.0)


@pytest.fixture(autouse=True)
def no_decorated_functions(monkeypatch):
    """Leave out what test modules have decorated on purpose with names that don't exist."""
    monkeypatch.setattr("locking.checks.DECORATED", WeakSet())


@pytest.fixture
def patient(own_redis, locks_on):
    """A server to break, whose configuration is put right afterwards."""
    locks_on(own_redis.url)
    client = own_redis.client
    named = ("maxmemory", "maxmemory-policy", "appendonly", "min-replicas-to-write", "min-replicas-max-lag")
    before = {name: client.config_get(name)[name] for name in named}
    yield client
    client.replicaof("NO", "ONE")
    for name, value in before.items():
        client.config_set(name, value)


def test_a_sound_server_is_reported_as_sound(patient):
    """Everything that was looked at is listed, with its figures."""
    patient.config_set("appendonly", "yes")
    found = findings()
    assert {finding.verdict for finding in found.values()} == {"ok"}
    assert set(found) >= {"version", "eviction", "memory", "persistence", "replication", "clock", "latency"}
    assert found["latency"].text.startswith("acquire + release: p50 ")


def test_a_server_that_evicts_is_found(patient):
    """Locks would vanish when its memory is full."""
    patient.config_set("maxmemory-policy", "allkeys-lru")
    finding = findings()["locking.W101"]
    assert finding.verdict == "warning"
    assert "allkeys-lru" in finding.text
    assert "noeviction" in finding.hint


def test_a_server_without_persistence_is_found(patient):
    """A restart would free every lock."""
    patient.config_set("appendonly", "no")
    finding = findings()["persistence"]
    assert finding.verdict == "warning"
    assert "when the server restarts" in finding.text


def test_a_server_that_is_full_is_found(patient):
    """It would refuse to be written to."""
    patient.config_set("maxmemory", patient.info("memory")["used_memory"] + MEGABYTE // 10)
    assert findings()["memory"].verdict == "warning"


def test_a_replica_is_found(patient):
    """It takes no locks; trying one is an error of its own."""
    patient.replicaof("127.0.0.1", 1)
    found = findings()
    assert found["replication"].verdict == "error"
    assert "this is a replica" in found["replication"].text
    assert found["latency"].verdict == "error"
    assert "READONLY" in found["latency"].text or "read only" in found["latency"].text


INFO = {"role": "master", "connected_slaves": "1", "min_slaves_good_slaves": "1"}


@pytest.mark.parametrize(("info", "replicas"), [({}, "auto"), ({"connected_slaves": "0"}, "auto"), ({}, 1)])
def test_a_master_that_writes_without_replicas_is_found(info, replicas):
    """Renewals aren't confirmed, nor what `auto` grants where no replica is: only the server can refuse."""
    copies = ReplicaAck(replicas, 1000)
    finding = diagnosis.judge_replication({**INFO, **info}, copies, min_replicas=0)
    assert finding.verdict == "warning"
    assert "min-replicas-to-write 1" in finding.hint
    assert diagnosis.judge_replication({**INFO, **info}, copies, min_replicas=None).verdict == "unknown"
    assert diagnosis.judge_replication({**INFO, **info}, copies, min_replicas=1).verdict == "ok"


@pytest.mark.parametrize(
    ("to_write", "max_lag", "verdict"), [(0, 10, "warning"), (1, 0, "warning"), (1, 10, "ok")]
)
def test_a_real_master_is_asked_what_it_asks_for_before_a_write(
    patient, settings, to_write, max_lag, verdict
):
    """Both settings are read from the server: either one as 0 turns both off."""
    settings.LOCKING["default"]["OPTIONS"] = {"wait_replicas": "auto"}
    patient.config_set("min-replicas-max-lag", max_lag)
    patient.config_set("min-replicas-to-write", to_write)
    assert findings()["replication"].verdict == verdict


def test_a_user_who_may_not_ask_is_reported(own_redis, locks_on):
    """A Redis user that is limited to the locks' own commands: the rest of the report is still there."""
    found = findings_of_a_user_without("info", own_redis, locks_on)
    assert found["permissions"].verdict == "unknown"
    assert "info" in found["permissions"].text
    assert found["latency"].verdict == "ok"


def test_keys_that_are_no_locks_are_found(patient, settings):
    """A string, a list or a hash of another use under the prefix is named; locks of every kind are not."""
    settings.LOCKING["default"]["KEY_PREFIX"] = "shop:lock:"
    with get_lock("a"), get_read_lock("b"), get_semaphore("c", permits=2), get_fair_lock("d"):
        finding = findings()["other keys"]
        assert (finding.verdict, finding.text) == (
            "ok",
            "none of 4 keys under 'shop:lock:' is of another use",
        )
        patient.set("shop:lock:cached", "x")
        patient.hset("shop:lock:cart", "mug", 2)
        patient.rpush("shop:lock:list", 1)
        patient.set("elsewhere", 1)
        finding = findings()["other keys"]
    assert finding.verdict == "warning"
    assert finding.text.startswith("3 of 7 keys under 'shop:lock:' are no locks")
    assert all(f"shop:lock:{name}" in finding.text for name in ("cached", "cart", "list"))


def test_without_a_prefix_no_key_is_called_another(patient):
    """Locks under their bare names share a server with whatever is there."""
    patient.set("cached", "x")
    assert "other keys" not in findings()


def test_counters_that_never_end_are_counted(patient, monkeypatch):
    """Each name that was ever fenced has one; a plain lock's ends by itself and isn't counted."""
    monkeypatch.setattr("locking.backends.redis.diagnosis.MANY", 3)
    with get_lock("plain"), get_lock("a", fenced=True), get_lock("b", fenced=True):
        finding = findings()["token counters"]
        assert (finding.verdict, finding.text) == ("ok", "2 without a ttl")
        patient.set("redisson_lock_token:{java}", 7)
        finding = findings()["token counters"]
    assert finding.verdict == "warning"
    assert finding.text.startswith("3 without a ttl")


def test_the_counters_of_a_large_server_are_estimated(patient, monkeypatch):
    """It isn't read to its end: what was found stands for the rest, and the report says so."""
    monkeypatch.setattr("locking.backends.redis.diagnosis.LOOKED_AT", 2000)
    patient.mset({f"redisson_lock_token:{{{number}}}": 7 for number in range(6000)})
    finding = findings()["token counters"]
    assert re.match(r"about [56]\d\d\d \((19|20)\d\d among 2000 keys\)", finding.text), finding.text
    patient.flushdb()


def test_a_user_without_scan_is_reported(own_redis, locks_on):
    """Counting needs SCAN; all else that this user may look at is there."""
    found = findings_of_a_user_without("scan", own_redis, locks_on)
    assert found["permissions"].verdict == "unknown"
    assert "SCAN" in found["permissions"].hint
    assert found["version"].verdict == "ok"


def test_too_few_replicas_are_found(own_redis, locks_on):
    """Nothing could be acquired."""
    locks_on(own_redis.url, wait_replicas=1, wait_timeout_ms=10)
    found = findings()
    assert found["replication"].verdict == "error"
    assert "0 replicas are connected, but wait_replicas asks for 1" in found["replication"].text


def test_a_clock_that_is_wrong_is_found(monkeypatch):
    """Here it is this machine's that is an hour behind, for the server and the database alike."""
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() - 3600)
    wrong = [
        (place, finding.text)
        for place, finding in live_checks.examine()
        if finding.subject == "clock" and finding.verdict == "warning"
    ]
    assert [place for place, _ in wrong] == ["LOCKING['default']", "DATABASES['default']"]
    assert all(" +3600." in text or " +3599." in text for _, text in wrong)


def test_a_server_that_is_down_is_found_once(backend_down):
    """What would only wait for it again is left out."""
    found = findings(alias="down")
    assert list(found) == ["server"]
    assert found["server"].verdict == "error"
    assert "doesn't answer" in found["server"].text


def test_a_lock_without_an_end_is_found(patient):
    """It was made by hand, or its ttl was taken away."""
    with get_lock("a"):
        patient.persist("a")
        finding = findings()["no end"]
        patient.pexpire("a", 30_000)
    assert (finding.verdict, finding.text) == ("warning", "1: a")


def test_a_holder_that_is_gone_is_found(monkeypatch):
    """Its process has given no sign of life."""
    monkeypatch.setattr("locking.inspection.columns.SILENT", -1.0)
    with get_lock("a"):
        presence = {lease_client("a"): '{"host": "web-1", "pid": 7}'}
        any_engine().publish_heartbeats(presence)
        finding = findings()["holder gone"]
    assert (finding.verdict, finding.text) == ("warning", "1: a")


def lease_client(name):
    """The client id of the caller that has the lock."""
    (hold,) = holds_of(name)
    return hold.owner.split(":")[0]


def test_a_missing_fence_is_found():
    """On a database that was never migrated."""
    with connection.schema_editor() as editor:
        editor.delete_model(Fence)
    try:
        fence = findings("DATABASES")["fence"]
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(Fence)
    assert fence.verdict == "warning"
    assert "manage.py migrate --database=default" in fence.hint


def test_tokens_of_a_clock_that_ran_ahead_are_found():
    """The names whose next holders will be given higher tokens, and by how much the clock was ahead."""
    token = int((time.time() + 3600) * 1_000_000)
    Fence.objects.create(name="shop", token=token, owner="gone:1", mark="gone")
    tokens = findings("DATABASES")["tokens"]
    assert tokens.verdict == "warning"
    assert re.fullmatch(
        r"tokens of 1 names are up to 3[56]\d\d s ahead of this machine's clock: shop", tokens.text
    )


def test_a_backend_that_cant_be_made_is_left_to_the_static_checks(settings):
    """`locking.E004` says why; the other aliases and the databases are examined."""
    settings.LOCKING = {"default": {"BACKEND": "locking.no.Such"}}
    assert findings() == {}
    messages = run_checks(tags=[live_checks.LIVE_TAG])
    assert [each.id for each in messages if "LOCKING" in each.msg] == ["locking.E004"]
    settings.LOCKING = 5
    messages = run_checks(tags=[live_checks.LIVE_TAG])
    assert [each.id for each in messages if "LOCKING" in each.msg] == ["locking.E001"]
    assert findings("DATABASES")["fence" if connection.vendor == "oracle" else "tokens"].verdict == "ok"


class Ailing(MemoryBackend, Diagnosis):
    """A third party's backend, with a finding of its own."""

    def diagnose(self):
        """Complain."""
        return [Finding("quorum", "error", "1 of 3 servers", "Start them.")]


def test_every_backend_is_examined_by_its_own_hook():
    """What `diagnose()` returns is a message; latency and holds come for every backend."""
    with override_settings(LOCKING={"default": {"BACKEND": f"{__name__}.Ailing"}}):
        assert findings()["latency"].verdict == findings()["holds"].verdict == "ok"
        with pytest.raises(SystemCheckError, match=r"locking.E299.*LOCKING\['default'\]: quorum: 1 of 3"):
            call_command("check", tags=[live_checks.LIVE_TAG])


def test_a_slow_server_is_found(patient, monkeypatch):
    """Requests above the limit are a warning that says how long they took, and where to look."""
    monkeypatch.setattr(live_checks, "SLOW", 0.0)
    slow = findings()["latency"]
    assert slow.verdict == "warning"
    assert re.search(r"p50 \d+\.\d\d ms, p95 \d+\.\d\d ms", slow.text)
    assert "network" in slow.hint


def test_what_is_wrong_is_a_message_and_what_is_well_is_logged(patient, caplog):
    """A message has an id, the setting that it is about, and what to do; figures are in the log."""
    patient.config_set("appendonly", "no")
    caplog.set_level("INFO", "locking.live_checks")
    warning = messages()["locking.W202"]
    assert str(warning.msg).startswith("LOCKING['default']: persistence: the append-only file is off")
    assert str(warning.hint).startswith("Set appendonly yes")
    assert any("LOCKING['default']: latency: acquire + release: p50" in line for line in caplog.messages)


def test_a_server_for_development_may_forget_its_locks(patient, settings):
    """With DEBUG the tutorial's server is no finding; one that evicts is."""
    settings.DEBUG = True
    patient.config_set("appendonly", "no")
    assert messages() == {}
    patient.config_set("maxmemory-policy", "allkeys-lru")
    assert list(messages()) == ["locking.W101"]


def test_each_id_tells_how_bad_it_is():
    """E, W and I are Django's levels; each id is used once; a finding without one has its level's last."""
    ids = [each for subject in live_checks.IDS.values() for each in subject] + [
        *live_checks.OF_ANOTHER_BACKEND
    ]
    assert len(ids) == len(set(ids))
    verdicts: tuple[tuple[Any, str], ...] = (("error", "E"), ("warning", "W"), ("unknown", "I"))
    for verdict, letter in verdicts:
        for subject, given in {**live_checks.IDS, "quorum": ()}.items():
            message = live_checks._message("LOCKING['default']", Finding(subject, verdict, "", ""))
            (own,) = [each for each in given if each[0] == letter] or [f"{letter}299"]
            assert message is not None
            assert (message.id, type(message).__name__[0]) == (f"locking.{own}", letter)


@pytest.mark.parametrize("backend", ["TransactionLockBackend", "RowLockBackend"])
def test_locks_of_a_transaction_are_well(backend, settings):
    """They are tried within a transaction; what such an engine can't tell is no error of it."""
    entry = {"BACKEND": f"locking.backends.database.{backend}"}
    settings.LOCKING = {**settings.LOCKING, "in-transaction": entry}
    rows = Fence.objects.count()
    found = [each for _ in range(2) for each in findings(alias="in-transaction").values()]
    assert [each for each in found if each.verdict in ("error", "warning")] == []
    assert "latency" in {each.subject for each in found}
    assert Fence.objects.count() <= rows + 1, "each examination would leave a row"
