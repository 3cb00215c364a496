"""`/livez` and `/readyz`: what they ask, how long they wait, and what they tell."""

import itertools
import json
import threading
from datetime import timedelta

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import RequestFactory
from django.urls import resolve

from locking.contrib import health
from locking.contrib.health import livez, readiness, readyz
from locking.core.handler import locks

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 60.0


def ask(view):
    """The status and the body of a view's answer."""
    answer = view(RequestFactory().get("/"))
    assert answer["Cache-Control"].startswith("max-age=0, no-cache")
    return answer.status_code, json.loads(answer.content)


def test_a_process_is_alive_whatever_its_servers_do(backend_down, monkeypatch):
    """No server is asked: restarting the process would heal none."""
    monkeypatch.setattr(health, "ask_database", None)
    monkeypatch.setattr(health, "ask_backend", None)
    assert ask(livez) == (200, {"status": "ok"})


def test_a_process_is_ready_when_every_server_answers(monkeypatch):
    """One line a server, with the time that it took; databases that other tests have are none of ours."""
    monkeypatch.setattr(connections, "settings", {"default": connections.settings["default"]})
    ticks = itertools.count()  # a local Redis may answer within 0.05 ms, which is shown as 0.0
    monkeypatch.setattr(health, "now", lambda: next(ticks) / 1000)
    status, body = ask(readiness(within=timedelta(seconds=PATIENCE)))
    assert (status, body["status"]) == (200, "ok"), body
    servers = [f"database {alias}" for alias in connections] + [f"locks {alias}" for alias in locks]
    assert list(body["checks"]) == servers
    assert {"database default", "locks default"} <= set(servers)
    assert all(check["ok"] and check["milliseconds"] > 0 for check in body["checks"].values())


def test_one_backend_that_is_down_is_enough(backend_down, caplog):
    """503; the page names the kind of error, the log its words."""
    status, body = ask(readiness(within=PATIENCE))
    assert (status, body["status"]) == (503, "failing")
    assert body["checks"]["locks default"]["ok"]
    assert body["checks"]["locks down"] == {"ok": False, "error": "BackendUnavailable"}
    assert "/nowhere/redis.sock" in caplog.text


def test_a_database_that_is_down_is_enough(connect, monkeypatch):
    """The error's class is shown, and nothing else goes wrong."""
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", connect)
    broken = {**connections.settings["default"], "HOST": "/nowhere"}
    monkeypatch.setitem(connections.settings, "broken", broken)
    status, body = ask(readiness(databases=["broken"], locks_on=[], within=PATIENCE))
    assert status == 503
    assert body["checks"] == {"database broken": {"ok": False, "error": "OperationalError"}}


def test_only_what_was_named_is_asked(backend_down):
    """A service that doesn't need a backend is ready without it."""
    assert ask(readiness(databases=[], locks_on=["default"], within=PATIENCE))[0] == 200


def test_a_server_that_hangs_is_asked_once(own_redis, locks_on):
    """The answer comes in time, and further requests don't pile up threads."""
    locks_on(own_redis.url)
    view = readiness(databases=[], within=0.05)
    own_redis.pause()
    before = threading.active_count()
    for _ in range(3):
        status, body = ask(view)
        assert status == 503
        assert body["checks"]["locks default"]["error"].startswith("no answer for ")
    assert threading.active_count() <= before + 1
    own_redis.resume()


def test_the_views_refuse_to_be_written_to():
    """GET and HEAD only."""
    assert (
        livez(RequestFactory().post("/")).status_code == readyz(RequestFactory().post("/")).status_code == 405
    )


@pytest.mark.parametrize("within", [0, -1, "soon"])
def test_a_time_that_is_none_is_refused(within):
    """Before the first request."""
    with pytest.raises(ValueError, match="within must be"):
        readiness(within=within)


def test_the_demo_project_has_both():
    """Without a slash at the end, as probes are written."""
    assert (resolve("/livez").func, resolve("/readyz").func) == (livez, readyz)


@pytest.mark.parametrize("backend", ["TransactionLockBackend", "RowLockBackend"])
def test_a_backend_whose_locks_are_of_a_transaction_is_ready(backend, settings):
    """One that can't tell who holds a lock is asked whether it is there."""
    entry = {"BACKEND": f"locking.backends.database.{backend}"}
    settings.LOCKING = {**settings.LOCKING, "in-transaction": entry}
    status, body = ask(readiness(databases=[], locks_on=["in-transaction"], within=PATIENCE))
    assert (status, body["checks"]["locks in-transaction"]["ok"]) == (200, True), body


@pytest.mark.parametrize("backend", ["TransactionLockBackend", "RowLockBackend"])
def test_a_backend_whose_database_is_down_is_not_ready(backend, settings, connect, monkeypatch):
    """It is asked, and not only believed."""
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", connect)
    broken = {**connections.settings["default"], "HOST": "/nowhere"}
    monkeypatch.setitem(connections.settings, "broken", broken)
    entry = {"BACKEND": f"locking.backends.database.{backend}", "OPTIONS": {"using": "broken"}}
    settings.LOCKING = {**settings.LOCKING, "in-transaction": entry}
    status, body = ask(readiness(databases=[], locks_on=["in-transaction"], within=PATIENCE))
    assert status == 503
    assert body["checks"] == {"locks in-transaction": {"ok": False, "error": "BackendUnavailable"}}
