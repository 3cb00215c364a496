"""`@distributed_lock` on views, called as Django calls them: through URLs, handler and middleware."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import IntegrityError, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy
from django.views import View

from locking import (
    LockError,
    LockLost,
    LockNotAcquired,
    LockTransactionError,
    assert_locked,
    conflict_response,
    distributed_lock,
    get_lock,
)
from locking.testing import simulate_loss
from locking.transactions.fence import forbid
from tests.locking.support.helpers import committed, elsewhere

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


def sell(name: str) -> HttpResponse:
    """Write a row under the lock of the order, and answer 201."""
    assert_locked("order:7")
    assert transaction.get_connection().in_atomic_block
    Group.objects.create(name=name)
    return JsonResponse({"sold": name}, status=201)


@distributed_lock(key="'order:'+<int:order_id>", wait=0)
def plain(request: HttpRequest, order_id: str) -> HttpResponse:
    return sell("plain")


@method_decorator(distributed_lock(key="'order:'+<order_id>", wait=0), name="dispatch")
class OnDispatch(View):
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return sell("dispatch")


class OnMethod(View):
    @method_decorator(distributed_lock(key="'order:'+<order_id>", wait=0))
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return sell("method")


class OnMethodDirectly(View):
    @distributed_lock(key="'order:'+<order_id>", wait=0)
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return sell("directly")


class OnDispatchDirectly(View):
    @distributed_lock(key="'order:'+<order_id>", wait=0)
    def dispatch(self, request: HttpRequest, order_id: int) -> Any:
        return super().dispatch(request, order_id=order_id)

    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return sell("dispatch directly")


class AsyncOnMethod(View):
    @method_decorator(distributed_lock(key="'order:'+<order_id>", wait=0))
    async def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        assert_locked("order:7")
        return HttpResponse("async method")


@distributed_lock(key="'order:'+<order_id>", wait=0)
async def asynchronous(request: HttpRequest, order_id: int) -> HttpResponse:
    assert_locked("order:7")
    return HttpResponse("async")


def confirm(error: LockError, request: HttpRequest, order_id: int) -> HttpResponse:
    return conflict_response(request, error, gettext_lazy("Please confirm"))


@distributed_lock(key="'order:'+<order_id>", wait=0, on_conflict=confirm)
def with_message(request: HttpRequest, order_id: int) -> HttpResponse:
    return sell("message")


@distributed_lock(key="'order:'+<order_id>", wait=0, on_conflict="raise")
def raising(request: HttpRequest, order_id: int) -> HttpResponse:
    return sell("raising")


@distributed_lock(key="'order:'+<order_id>", wait=0, on_conflict="skip")
def skipping(request: HttpRequest, order_id: int) -> HttpResponse:
    return sell("skipping")


@distributed_lock(key="'order:'+<order_id>", backend="down")
def without_backend(request: HttpRequest, order_id: int) -> HttpResponse:
    return sell("never")


@distributed_lock(key="'cart:'+<request.user.pk|'anon'>", wait=0, release=False, ttl=60)
def submit(request: HttpRequest) -> HttpResponse:
    return HttpResponse("placed", status=201)


@distributed_lock(key="'order:7'")
def streaming(request: HttpRequest) -> StreamingHttpResponse:
    Group.objects.create(name="streaming")
    return StreamingHttpResponse(iter(["late"]))


@distributed_lock(key="'order:7'")
def server_error(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="kept")
    return HttpResponse(status=500)


@distributed_lock(key="'order:7'")
def swallowing(request: HttpRequest, status: int) -> HttpResponse:
    for _ in range(2):
        with suppress(IntegrityError):
            Group.objects.create(name="twice")
    return HttpResponse(status=status)


@distributed_lock(key="'order:7'")
def asking_for_rollback(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="undone")
    transaction.set_rollback(True)
    return HttpResponse(status=422)


@distributed_lock(key="'lost'")
def losing(request: HttpRequest) -> HttpResponse:
    """Write a row, and lose the lock before the commit."""
    Group.objects.create(name="lost")
    simulate_loss("lost")
    return HttpResponse(status=201)


@distributed_lock(key="'lost'")
def noting(request: HttpRequest, fate: str) -> HttpResponse:
    """Note in the session what was stored, once it is."""
    transaction.on_commit(lambda: request.session.__setitem__("order", fate))
    if fate == "lost":
        simulate_loss("lost")
    return HttpResponse(status=201)


@distributed_lock(key="'lost'", on_conflict="raise")
def losing_loudly(request: HttpRequest) -> HttpResponse:
    """The same for a project that wants the error."""
    simulate_loss("lost")
    return HttpResponse(status=201)


@distributed_lock(key="'overtaken'", fenced=True)
def overtaken(request: HttpRequest) -> HttpResponse:
    """Fenced; the tests let a later holder come first."""
    Group.objects.create(name="overtaken")
    return HttpResponse(status=201)


urlpatterns = [
    path("losing/", losing),
    path("noting/<str:fate>/", noting),
    path("losing-loudly/", losing_loudly),
    path("overtaken/", overtaken),
    path("plain/<str:order_id>/", plain),
    path("dispatch/<int:order_id>/", OnDispatch.as_view()),
    path("method/<int:order_id>/", OnMethod.as_view()),
    path("directly/<int:order_id>/", OnMethodDirectly.as_view()),
    path("dispatch-directly/<int:order_id>/", OnDispatchDirectly.as_view()),
    path("async-method/<int:order_id>/", AsyncOnMethod.as_view()),
    path("async/<int:order_id>/", asynchronous),
    path("message/<int:order_id>/", with_message),
    path("raising/<int:order_id>/", raising),
    path("skipping/<int:order_id>/", skipping),  # type: ignore[arg-type]
    path("down/<int:order_id>/", without_backend),
    path("submit/", submit),
    path("streaming/", streaming),
    path("server-error/", server_error),
    path("swallowing/<int:status>/", swallowing),
    path("rollback/", asking_for_rollback),
]

ON_DISPATCH = ["/plain/007/", "/dispatch/7/", "/dispatch-directly/7/"]
ON_METHOD = ["/method/7/", "/directly/7/"]
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
def order_taken() -> Iterator[None]:
    """Another thread works on order 7 for the whole test."""
    lease = elsewhere(get_lock("order:7", ttl=20).acquire)
    yield
    elsewhere(lease.release)


# --- commit before release --------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ON_DISPATCH + ON_METHOD)
def test_a_view_commits_before_the_release(client: Client, address: str, at_release: list[list[str]]) -> None:
    """Function or class, on dispatch or on a method: the row is committed when the lock is let go."""
    response = client.get(address)
    assert response.status_code == 201
    assert at_release == [[response.json()["sold"]]]


@pytest.mark.parametrize("address", ON_DISPATCH)
def test_a_view_commits_before_the_release_under_atomic_requests(
    client: Client, address: str, at_release: list[list[str]], atomic_requests: None
) -> None:
    """ATOMIC_REQUESTS would commit after every decorator, so the view is taken out of it."""
    response = client.get(address)
    assert response.status_code == 201
    assert at_release == [[response.json()["sold"]]]


@pytest.mark.parametrize("address", ON_METHOD)
def test_a_method_under_atomic_requests_is_refused(
    client: Client, address: str, atomic_requests: None
) -> None:
    """A method can't take its view out of ATOMIC_REQUESTS: refused with the way out, never released early."""
    with pytest.raises(LockTransactionError, match="method_decorator on 'dispatch'"):
        client.get(address)
    assert committed() == []


def test_a_wrapped_function_keeps_its_own_exemptions() -> None:
    """Being taken out of ATOMIC_REQUESTS adds to what the view has said itself, on the new function only."""

    @transaction.non_atomic_requests(using="other")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    decorated: Any = distributed_lock(key="'a'", using=["default", "second"])(view)
    assert decorated._non_atomic_requests == {"other", "default", "second"}
    assert view._non_atomic_requests == {"other"}  # type: ignore[attr-defined]


def test_only_exceptions_roll_back(client: Client) -> None:
    """Django's own rule: a response of any status commits."""
    assert client.get("/server-error/").status_code == 500
    assert committed() == ["kept"]


def test_a_success_whose_rows_are_not_there_is_never_answered(client: Client) -> None:
    """201 after a swallowed IntegrityError would be a lie, so it is an error."""
    with pytest.raises(LockTransactionError, match="was caught"):
        client.get("/swallowing/201/")
    assert committed() == []


def test_a_refusal_may_roll_back(client: Client) -> None:
    """A view that answers 409 itself after a database error says that it failed: the answer is kept."""
    assert client.get("/swallowing/409/").status_code == 409
    assert client.get("/rollback/").status_code == 422
    assert committed() == []
    assert not elsewhere(get_lock("order:7").locked)


def test_a_streaming_response_is_refused(client: Client) -> None:
    """It would be produced after the release; nothing of it is stored."""
    with pytest.raises(LockTransactionError, match="StreamingHttpResponse"):
        client.get("/streaming/")
    assert committed() == []


# --- answers instead of the body --------------------------------------------------------------------------


@pytest.mark.parametrize("address", [*ON_DISPATCH, *ON_METHOD, "/skipping/7/"])
def test_a_taken_lock_answers_409(client: Client, address: str, order_taken: None) -> None:
    """A view answers with a problem document that says when to come back, and the body doesn't run."""
    response = client.get(address, headers={"accept": "application/json"})
    assert response.status_code == 409
    assert response["Content-Type"] == "application/problem+json"
    assert 1 <= int(response["Retry-After"]) <= 20
    assert response["Cache-Control"] == "no-store"
    problem = json.loads(response.content)
    assert problem["type"] == "urn:holdfast:problem:lock-busy"
    assert problem["status"] == 409
    assert problem["title"] == "Conflict"
    assert problem["retry_after"] == int(response["Retry-After"])
    assert "order:7" not in response.content.decode()
    assert committed() == []


@pytest.mark.parametrize("address", ["/plain/7/", "/method/7/"])
def test_a_taken_lock_answers_409_under_atomic_requests(
    client: Client, address: str, order_taken: None, atomic_requests: None
) -> None:
    """With ATOMIC_REQUESTS a conflict is a conflict where the decorator sits right, and refused elsewhere."""
    if address == "/plain/7/":
        assert client.get(address).status_code == 409
    else:
        with pytest.raises(LockTransactionError):
            client.get(address)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (BROWSER, "text/html; charset=utf-8"),
        ("text/html", "text/html; charset=utf-8"),
        ("*/*", "application/problem+json"),
        ("application/problem+json", "application/problem+json"),
        ("image/png", "application/problem+json"),
    ],
)
def test_the_form_of_the_answer_follows_accept(
    client: Client, order_taken: None, accept: str, content_type: str
) -> None:
    """A browser gets a page, a program a problem document."""
    response = client.get("/plain/7/", headers={"accept": accept})
    assert response.status_code == 409
    assert response["Content-Type"] == content_type


def test_the_page_says_what_to_do(client: Client, order_taken: None) -> None:
    """The page tells the visitor that someone else is at it, and escapes a message of its own."""
    page = client.get("/plain/7/", headers={"accept": BROWSER}).content.decode()
    assert "Someone else is working on this" in page
    assert "order:7" not in page
    assert "Please confirm" in client.get("/message/7/", headers={"accept": BROWSER}).content.decode()


def test_a_backend_that_is_down_answers_503(client: Client, backend_down: str) -> None:
    """An outage is not a conflict: 503, and when to come back."""
    response = client.get("/down/7/")
    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert response.json()["type"] == "urn:holdfast:problem:lock-unavailable"


def test_raise_leaves_the_answer_to_the_project(client: Client, order_taken: None) -> None:
    """With `raise` the error reaches the project's own handlers."""
    with pytest.raises(LockNotAcquired):
        client.get("/raising/7/")


def test_a_double_submit_is_refused(client: Client) -> None:
    """The second submit within the ttl is not placed."""
    assert client.post("/submit/").status_code == 201
    assert client.post("/submit/").status_code == 409


# --- async views ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("address", "text"), [("/async/7/", "async"), ("/async-method/7/", "async method")])
async def test_async_views_run_under_their_lock(async_client: AsyncClient, address: str, text: str) -> None:
    """An async view, function or method, holds its lock while it awaits."""
    response = await async_client.get(address)
    assert response.content.decode() == text
    assert not await get_lock("order:7").alocked()
    await sync_to_async(connections.close_all)()


@pytest.mark.parametrize("address", ["/async/7/", "/async-method/7/"])
async def test_an_async_view_answers_409(async_client: AsyncClient, address: str, order_taken: None) -> None:
    """A conflict is answered in async code as well."""
    response = await async_client.get(address)
    assert response.status_code == 409
    await sync_to_async(connections.close_all)()


async def test_an_async_view_works_under_atomic_requests(
    async_client: AsyncClient, atomic_requests: None
) -> None:
    """Django refuses async views under ATOMIC_REQUESTS unless they are taken out of it, as this one is."""
    assert (await async_client.get("/async/7/")).content == b"async"
    await sync_to_async(connections.close_all)()


def test_a_view_that_lost_its_lock_answers_409_and_stores_nothing(client: Client) -> None:
    """The transaction was rolled back, so the visitor may try again, and the answer says so."""
    response = client.get("/losing/")
    assert (response.status_code, response["Content-Type"]) == (409, "application/problem+json")
    assert int(response["Retry-After"]) > 0
    assert committed() == []


def test_what_on_commit_puts_into_the_session_is_there_only_if_it_is_true(client: Client) -> None:
    """The session isn't the database's, so nothing else would undo it."""
    assert client.get("/noting/lost/").status_code == 409
    assert "order" not in client.session
    assert client.get("/noting/stored/").status_code == 201
    assert client.session["order"] == "stored"


def test_a_view_that_was_overtaken_answers_409_and_stores_nothing(client: Client) -> None:
    """The fence refuses the token before the view has read anything."""
    forbid("overtaken", 2**62)
    assert client.get("/overtaken/").status_code == 409
    assert committed() == []


def test_a_lost_lock_is_an_error_to_who_wants_errors(client: Client) -> None:
    """With on_conflict="raise" the project's own error handling gets it."""
    with pytest.raises(LockLost):
        client.get("/losing-loudly/")
