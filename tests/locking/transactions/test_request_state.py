"""A body that was rolled back leaves no trace in the session, and none in the messages."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.contrib import messages
from django.contrib.auth.models import Group
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path

from locking import LockLost, distributed_lock
from locking.testing import simulate_loss
from locking.transactions.request_state import RequestState

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

ENGINES = ["db", "cache", "cached_db", "signed_cookies"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, settings: Any) -> str:
    """Where sessions are kept."""
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{request.param}"
    settings.CACHES = {
        **settings.CACHES,
        "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    }
    settings.SESSION_CACHE_ALIAS = "memory"
    import_module(settings.SESSION_ENGINE)
    return str(request.param)


def change(request: HttpRequest) -> None:
    """Change the session and the messages, as a checkout does."""
    request.session["basket"].append("mug")
    request.session["order_id"] = 7
    del request.session["address"]
    messages.success(request, "placed")


@distributed_lock(key="'shop'")
def losing(request: HttpRequest) -> HttpResponse:
    change(request)
    simulate_loss("shop")
    return HttpResponse(status=201)


@distributed_lock(key="'shop'")
def new_key_and_losing(request: HttpRequest) -> HttpResponse:
    request.session.cycle_key()
    return losing_inside(request)


def new_key(request: HttpRequest) -> HttpResponse:
    assert request.session["basket"] == ["pen"]  # as request.user reads the session before a view does
    return new_key_and_losing(request)


def losing_inside(request: HttpRequest) -> HttpResponse:
    change(request)
    simulate_loss("shop")
    return HttpResponse(status=201)


@distributed_lock(key="'shop'", on_conflict="raise")
def losing_loudly(request: HttpRequest) -> HttpResponse:
    return losing_inside(request)


def handled_by_the_project(request: HttpRequest) -> HttpResponse:
    try:
        return losing_loudly(request)
    except LockLost:
        return HttpResponse(status=409)


RUNS: list[int] = []


@distributed_lock(key="'shop'", retries=1)
def retried(request: HttpRequest) -> HttpResponse:
    RUNS.append(1)
    request.session["basket"].append("mug")
    messages.success(request, "placed")
    if len(RUNS) == 1:
        raise OperationalError(1213, "Deadlock found")
    Group.objects.create(name="sold")
    request.session.modified = True
    return HttpResponse(status=201)


@distributed_lock(key="'shop'")
def keeping(request: HttpRequest) -> HttpResponse:
    request.session["order_id"] = 7
    messages.success(request, "placed")
    return HttpResponse(status=201)


def show(request: HttpRequest) -> HttpResponse:
    reported = [str(message) for message in messages.get_messages(request)]
    return JsonResponse({"session": dict(request.session), "messages": reported})


def fill(request: HttpRequest) -> HttpResponse:
    request.session["basket"] = ["pen"]
    request.session["address"] = "here"
    messages.info(request, "welcome")
    return HttpResponse()


urlpatterns = [
    path("losing/", losing),
    path("new-key/", new_key),
    path("handled/", handled_by_the_project),
    path("retried/", retried),
    path("keeping/", keeping),
    path("show/", show),
    path("fill/", fill),
]

BEFORE = {"session": {"basket": ["pen"], "address": "here"}, "messages": ["welcome"]}


@pytest.mark.parametrize("address", ["/losing/", "/new-key/", "/handled/"])
@pytest.mark.usefixtures("engine")
def test_a_lost_lock_leaves_session_and_messages_as_they_were(client: Client, address: str) -> None:
    """Answered by the decorator or by the project, and whatever key the body gave the session."""
    client.get("/fill/")
    assert client.get(address).status_code == 409
    assert client.get("/show/").json() == BEFORE


def test_a_session_that_no_client_has_read_yet_is_left_alone(
    client: Client, django_assert_num_queries: Any
) -> None:
    """Noting the state reads nothing from the session's store."""
    client.get("/fill/")
    request = client.get("/show/").wsgi_request
    session = type(request.session)(request.session.session_key)
    request.session = session
    with django_assert_num_queries(0):
        state = RequestState(request)
        state.restore()
    assert not session.accessed
    session["order_id"] = 7
    state.restore()
    assert (session.accessed, session.modified) == (False, False)
    assert "order_id" not in session


def test_a_function_that_is_run_again_begins_with_the_session_as_it_was(client: Client) -> None:
    """The first run was rolled back: its article and its message are not there twice."""
    RUNS.clear()
    client.get("/fill/")
    assert client.get("/retried/").status_code == 201
    shown = client.get("/show/").json()
    assert shown["session"]["basket"] == ["pen", "mug"]
    assert shown["messages"] == ["welcome", "placed"]


def test_a_body_that_committed_keeps_its_session(client: Client) -> None:
    """Only what was rolled back is undone."""
    client.get("/fill/")
    assert client.get("/keeping/").status_code == 201
    shown = client.get("/show/").json()
    assert shown["session"]["order_id"] == 7
    assert shown["messages"] == ["welcome", "placed"]


def test_a_request_without_session_and_messages_has_no_state() -> None:
    """Middleware may be missing, and plain functions have no request."""
    RequestState(None).restore()
    RequestState(HttpRequest()).restore()


def test_mutant_without_restoring_the_session_tells_of_an_order_that_is_not_there(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is gone, and the order's id stays although its transaction was rolled back."""
    monkeypatch.setattr(RequestState, "restore", lambda state: None)
    client.get("/fill/")
    assert client.get("/losing/").status_code == 409
    shown = client.get("/show/").json()
    assert shown["session"] == {"basket": ["pen", "mug"], "order_id": 7}
