import json
import socket

import psycopg
import pytest
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from inventory import Busy, InvalidLines, Shortage, SoldOut
from locking import BackendError, BackendUnavailable, LockLost, LockNotAcquired, StaleFencingToken
from orders.http.api import _served
from orders.http.problems import PROBLEM_TYPES, invalid

DEADLOCK = psycopg.errors.DeadlockDetected("deadlock detected")
ADMIN_SHUTDOWN = psycopg.errors.AdminShutdown("terminating connection")
TOO_MANY = psycopg.errors.TooManyConnections("too many clients")


def database_error(cause: Exception | None) -> OperationalError:
    """Return what Django raises for an error of psycopg."""
    error = OperationalError(str(cause))
    error.__cause__ = cause
    return error


def unreachable() -> OperationalError:
    """Return what a server that is down leads to."""
    with pytest.raises(psycopg.OperationalError) as reported:
        psycopg.connect(host="/no/server/here")
    return database_error(reported.value)


def unresolved() -> OperationalError:
    """Return what a name leads to that is gone with its server."""

    def gone(*args, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(psycopg.OperationalError) as reported:
        patch.setattr(socket, "getaddrinfo", gone)
        psycopg.connect(host="database")
    return database_error(reported.value)


def answer(error: Exception, method: str = "POST") -> HttpResponse:
    """Return what a view that raises `error` answers."""

    @_served
    def view(request: HttpRequest) -> HttpResponse:
        raise error

    return view(RequestFactory().generic(method, "/"))


@pytest.mark.parametrize(
    ("error", "status", "slug", "retry_after"),
    [
        (invalid(("/lines", "is missing")), 400, "invalid-request", None),
        (InvalidLines("mug: a quantity is from 1 to 10000, not 20000"), 400, "invalid-request", None),
        (SoldOut([Shortage("mug", 3, 1)]), 409, "sold-out", None),
        (Busy("stayed locked", retry_after=2.2), 503, "busy", "3"),
        (Busy("stayed locked", retry_after=0), 503, "busy", "1"),
        (LockNotAcquired("sku:mug", waited=5, backend="default", retry_after=0.2), 503, "busy", "1"),
        (LockNotAcquired("sku:mug", waited=5, backend="default"), 503, "busy", "1"),
        (StaleFencingToken("overtaken"), 503, "busy", "1"),
        (BackendUnavailable("no answer"), 503, "unavailable", "5"),
        (BackendError("OOM"), 503, "unavailable", "5"),
        (LockLost("gone"), 503, "outcome-unknown", "5"),
        (database_error(DEADLOCK), 503, "unavailable", "5"),
        (database_error(TOO_MANY), 503, "unavailable", "5"),
        (unreachable(), 503, "unavailable", "5"),
        (unresolved(), 503, "unavailable", "5"),
        (database_error(ADMIN_SHUTDOWN), 503, "outcome-unknown", "5"),
        (database_error(None), 503, "outcome-unknown", "5"),
    ],
)
def test_every_domain_error_has_its_answer(error, status, slug, retry_after):
    """Final, busy, down and unknown differ by status, type and Retry-After."""
    response = answer(error)
    body = json.loads(response.content)
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, body["status"], body["type"]) == (status, status, f"/problems/#{slug}")
    assert response.headers.get("Retry-After") == retry_after
    assert body["title"]
    assert body["detail"]


def test_a_server_that_never_answers_a_connection_was_asked_for_nothing():
    """A time-out of the connection is an outage: no statement, and no COMMIT, can have been sent."""
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(psycopg.OperationalError) as reported:
        psycopg.connect(host="127.0.0.1", port=mute.getsockname()[1], connect_timeout=2)  # psycopg's least
    assert json.loads(answer(database_error(reported.value)).content)["type"] == "/problems/#unavailable"


def test_sold_out_names_each_short_line():
    """The answer to a short cart tells for each line what was requested and what is there."""
    body = json.loads(answer(SoldOut([Shortage("mug", 3, 1), Shortage("pen", 2, 0)])).content)
    assert body["shortages"] == [
        {"sku": "mug", "requested": 3, "available": 1},
        {"sku": "pen", "requested": 2, "available": 0},
    ]


def test_a_busy_answer_keeps_the_holder_to_itself():
    """Who holds the lock is for the log, not for the next buyer."""
    error = LockNotAcquired("sku:mug", waited=5, backend="default", holder="alice@web-1", retry_after=1)
    assert b"alice" not in answer(error).content


def test_a_reader_is_not_shown_orders():
    """Reading places no order, so a lost connection is an outage there and not an unknown outcome."""
    body = json.loads(answer(database_error(None), "GET").content)
    assert body["type"] == "/problems/#unavailable"


def test_a_bug_is_not_dressed_up_as_a_problem():
    """An unexpected error goes on to Django's own handling, where it is logged and reported."""
    with pytest.raises(ZeroDivisionError):
        answer(ZeroDivisionError())


def test_the_answer_may_not_be_cached():
    """A stock or an order kept by a cache between would be an old one."""
    assert "no-store" in answer(SoldOut([])).headers["Cache-Control"]


def test_types_are_distinguished():
    """Every type of problem has an address of its own."""
    assert len({kind.slug for kind in PROBLEM_TYPES}) == len(PROBLEM_TYPES)
