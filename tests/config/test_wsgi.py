"""What the served application leaves out at the beginning of a request is made up for at its end."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_started
from django.db import close_old_connections, connection, connections, reset_queries

from config import wsgi

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def served(monkeypatch):
    """The application as it is served, with connections that are kept; signals are restored at the end."""
    receivers = request_started.receivers[:]
    request_started.connect(close_old_connections)
    request_started.connect(reset_queries)
    wsgi.begin_lightly()
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 600)
    monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", True)
    connection.close()
    yield WSGIHandler()
    request_started.receivers = receivers
    request_started.sender_receivers_cache.clear()
    connection.close()


def get(application: Any) -> str:
    """Return the status of the list of products."""
    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/products/",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "HTTP_HOST": "localhost",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
    }
    answer = application(environ, lambda status, headers, error=None: statuses.append(status))
    b"".join(answer)
    answer.close()
    return statuses[0]


def end_connection_of_the_last_request() -> None:
    """Have the server end it, as a restart would."""
    other = connections["default"].copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
    other.close()


def test_a_request_begins_without_a_look_at_connections(served):
    """Neither of Django's two receivers is called."""
    called = {receiver for pair in request_started.receivers for receiver in [pair[1]()]}
    assert close_old_connections not in called


def test_a_connection_that_died_between_requests_is_found_out(served):
    """The next request checks what it finds, and opens a new one."""
    assert get(served) == "200 OK"
    end_connection_of_the_last_request()
    assert get(served) == "200 OK"


def test_a_connection_that_has_grown_old_is_closed_behind_the_request(served):
    """It is used once more at most."""
    assert get(served) == "200 OK"
    connection.close_at = 0.0
    assert get(served) == "200 OK"
    assert connection.connection is None
