"""What the served application leaves out at the beginning of a request is made up for at its end."""

from __future__ import annotations

import io
import json
import sys
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from django.core.signals import request_finished, request_started
from django.db import DatabaseError, close_old_connections, connection, connections, reset_queries
from django.http import HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.urls import Resolver404, set_urlconf

from config import wsgi
from config.postgresql import base

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def served(monkeypatch):
    """The application as it is served, with connections that are kept; signals are restored at the end."""
    started, finished = request_started.receivers[:], request_finished.receivers[:]
    request_started.connect(close_old_connections)
    request_started.connect(reset_queries)
    wsgi.detach_receivers()
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 600)
    monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", True)
    connection.close()
    yield wsgi.Handler()
    request_started.receivers, request_finished.receivers = started, finished
    for signal in (request_started, request_finished):
        signal.sender_receivers_cache.clear()
    set_urlconf(None)  # which a request's end does elsewhere
    connection.close()


def answer_of(application: Any, path: str, **members: str) -> tuple[str, Any]:
    """Return the status of an answer, and the answer; `members` are those of the environment besides."""
    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "HTTP_HOST": "localhost",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        **members,
    }
    served = wsgi.in_one_piece(application)
    answer = served(environ, lambda status, headers, error=None: statuses.append(status))
    return statuses[0], answer


def get(application: Any) -> str:
    """Return the status of the list of products."""
    return answer_of(application, "/products/")[0]


def end_connection_of_the_last_request() -> None:
    """Have the server end it, as a restart would."""
    other = connections["default"].copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 30000)", [connection.connection.info.backend_pid])
    other.close()


def test_a_request_begins_without_a_look_at_connections(served):
    """Neither of Django's two receivers is called."""
    called = {receiver for pair in request_started.receivers for receiver in [pair[1]()]}
    assert close_old_connections not in called


@pytest.mark.parametrize(
    ("content_type", "query"),
    [
        ("application/json; charset*=nope'en'y", ""),
        ("application/json; charset=hex", "x=1"),
        ("application/json; charset=undefined", "x=1"),
        ("application/json; charset=utf-8", "&".join(["x=1"] * 1001)),
    ],
)
def test_a_content_type_that_cannot_be_read_is_refused_as_any_other(served, content_type, query):
    """A charset that isn't one, or isn't one of text, gets a clear answer and no error behind the views."""
    asked = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": content_type, "QUERY_STRING": query}
    status, answer = answer_of(served, "/checkout/", **asked)
    assert status == "415 Unsupported Media Type"
    assert json.loads(answer[0])["type"] == "/problems/#media-type"


@pytest.mark.parametrize(
    ("charset", "query"),
    [("charset*=nope'en'y", ""), ("charset=hex", "after=mug"), ("charset=undefined", "after=mug")],
)
def test_a_content_type_that_cannot_be_read_harms_no_reader(served, charset, query):
    """Where no body is read it doesn't matter."""
    asked = {"CONTENT_TYPE": f"text/plain; {charset}", "QUERY_STRING": query}
    assert answer_of(served, "/products/", **asked)[0] == "200 OK"


@pytest.mark.parametrize(
    ("charset", "query"), [("charset*=nope'en'y", ""), ("charset=utf-8", "&".join(["x=1"] * 1001))]
)
def test_a_content_type_that_cannot_be_read_leaves_the_path_alone(served, charset, query):
    """It is decoded once: a second time it would be no path, and match no view."""
    path = "/日/".encode().decode("latin-1")  # as a server gives it
    asked = {"CONTENT_TYPE": f"text/plain; {charset}", "QUERY_STRING": query}
    assert answer_of(served, path, **asked)[0] == "404 Not Found"


def test_a_connection_that_died_between_requests_is_found_out(served):
    """The next request checks what it finds, and opens a new one."""
    assert get(served) == "200 OK"
    end_connection_of_the_last_request()
    assert get(served) == "200 OK"


def test_a_connection_that_nothing_was_heard_of_is_used_without_a_question(served, monkeypatch):
    """Django would ask under the lock; a request that finds its connection silent asks nothing."""
    is_usable = mock.Mock(return_value=True)
    monkeypatch.setattr(connections["default"], "is_usable", is_usable)
    assert get(served) == get(served) == get(served) == "200 OK"
    is_usable.assert_not_called()


def test_without_a_look_at_the_socket_a_dead_connection_fails_its_request(served, monkeypatch):
    """The mutant takes every connection for a living one, and answers that the database is away."""
    monkeypatch.setattr(base, "is_silent", lambda connection: True)
    assert get(served) == "200 OK"
    end_connection_of_the_last_request()
    assert get(served) == "503 Service Unavailable"


def test_a_connection_that_died_behind_a_failed_statement_is_found_out(served, monkeypatch):
    """What Django asks at the end of a request, for its error, says nothing about the next one."""

    def fail(request):
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM nowhere"
            )  # outside of a transaction, whose rollback would forget it
        return HttpResponse()

    with monkeypatch.context() as patched:
        patched.setattr(served, "_middleware_chain", fail)
        assert get(served) == "200 OK"
    end_connection_of_the_last_request()
    assert get(served) == "200 OK"


def test_a_connection_that_has_grown_old_is_closed_behind_the_request(served):
    """It is used once more at most."""
    assert get(served) == "200 OK"
    connection.close_at = 0.0
    assert get(served) == "200 OK"
    assert connection.connection is None


def test_a_whole_answer_is_given_to_the_server_at_once(served):
    """It is a list, and everything that Django does behind a request is done."""
    ended: list[object] = []
    request_finished.connect(lambda sender, **_: ended.append(sender), weak=False)
    status, answer = answer_of(served, "/products/")
    assert (status, answer, len(ended)) == ("200 OK", [b'{"products": [], "next": null}'], 1)


def test_a_streamed_answer_stays_as_it_is(served, monkeypatch):
    """The server asks for its pieces and closes it."""
    streamed = StreamingHttpResponse([b"a", b"b"])
    monkeypatch.setattr(served, "_middleware_chain", lambda request: streamed)
    assert answer_of(served, "/products/")[1] is streamed


def remembers_fixed_addresses_only(handler: wsgi.Handler) -> None:
    """An address with an argument in it is looked up each time, and a wrong one is wrong again."""
    order = "/orders/00000000-0000-0000-0000-000000000007/"
    statuses = [answer_of(handler, path)[0] for path in ["/products/", order, "/products/none", "/livez"] * 2]
    assert statuses[4:] == statuses[:4] == ["200 OK", "404 Not Found", "404 Not Found", "200 OK"]
    assert set(handler._fixed) == {"/products/", "/livez"}


class RemembersEverything(wsgi.Handler):
    """Keeps every address that anyone has asked for: memory without end."""

    def resolve_request(self, request: Any) -> Any:
        match = super().resolve_request(request)
        self._fixed[request.path_info] = match
        return match


def test_a_fixed_address_is_looked_up_once(served):
    """Only an address that is its whole route is remembered."""
    remembers_fixed_addresses_only(served)


def test_a_handler_that_remembers_everything_is_refused(served):
    """The mutant keeps the address of an order."""
    with pytest.raises(AssertionError):
        remembers_fixed_addresses_only(RemembersEverything())


def test_a_request_with_addresses_of_its_own_is_looked_up_in_them(served, monkeypatch):
    """What is remembered of the shop's addresses says nothing about them."""
    get(served)
    request = RequestFactory().get("/products/")
    request.urlconf = "django.contrib.auth.urls"
    with pytest.raises(Resolver404):
        served.resolve_request(request)
    assert set(served._fixed) == {"/products/"}
