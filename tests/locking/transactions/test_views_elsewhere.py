"""`@distributed_lock` on the views of Django REST framework and Django Ninja, and in Chinese."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from ninja import NinjaAPI, Status
from rest_framework.decorators import api_view
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from locking import LockTransactionError, assert_locked, distributed_lock, get_lock
from tests.locking.support.helpers import committed, elsewhere
from tests.locking.transactions.test_decorators_views import plain, without_backend

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

lock_order: Any = distributed_lock(key="'order:'+<order_id>", wait=0)
OPEN: dict[str, Any] = {"authentication_classes": (), "permission_classes": ()}


def sell(name: str, fail: Any = None) -> dict[str, str]:
    """Write a row under the lock of the order; refuse the sale afterwards where asked to."""
    assert_locked("order:7")
    Group.objects.create(name=name)
    if fail:
        raise ValidationError("afterwards")
    return {"sold": name}


class Plain(APIView):
    authentication_classes = ()
    permission_classes = ()


@method_decorator(lock_order, name="dispatch")
class OnDispatch(Plain):
    def get(self, request: Request, order_id: int) -> Response:
        return Response(sell("dispatch", request.GET.get("fail")), status=201)


class OnMethod(Plain):
    @lock_order
    def get(self, request: Request, order_id: int) -> Response:
        return Response(sell("method", request.GET.get("fail")), status=201)


class OnAction(ViewSet):
    authentication_classes = ()
    permission_classes = ()

    @method_decorator(lock_order)
    def retrieve(self, request: Request, order_id: int) -> Response:
        return Response(sell("action", request.GET.get("fail")), status=201)


@lock_order
@api_view(["GET"])
def above(request: Request, order_id: int) -> Response:
    return Response(sell("above", request.GET.get("fail")), status=201)


@api_view(["GET"])
@lock_order
def below(request: Request, order_id: int) -> Response:
    return Response(sell("below", request.GET.get("fail")), status=201)


above.cls.authentication_classes = below.cls.authentication_classes = ()

api = NinjaAPI(urls_namespace="holdfast-tests", docs_url=None, openapi_url=None)


@api.get("/{order_id}/", response={201: dict[str, str]})
@lock_order
def operation(request: HttpRequest, order_id: int, fail: int = 0) -> Any:
    return Status(201, sell("ninja", fail))


@api.exception_handler(ValidationError)
def refuse(request: HttpRequest, error: Exception) -> Any:
    return api.create_response(request, {"detail": "afterwards"}, status=400)


urlpatterns = [
    path("dispatch/<int:order_id>/", OnDispatch.as_view()),
    path("method/<int:order_id>/", OnMethod.as_view()),
    path("action/<int:order_id>/", OnAction.as_view({"get": "retrieve"})),
    path("above/<int:order_id>/", above),
    path("below/<int:order_id>/", below),
    path("ninja/", api.urls),
    path("plain/<str:order_id>/", plain),
    path("down/<int:order_id>/", without_backend),
]

OUTSIDE = ["/dispatch/7/", "/above/7/"]
INSIDE = ["/method/7/", "/action/7/", "/below/7/", "/ninja/7/"]
CHINESE = {"accept-language": "zh-hans", "accept": "text/html"}


@pytest.fixture
def order_taken() -> Iterator[None]:
    """Another thread works on order 7 for the whole test."""
    lease = elsewhere(get_lock("order:7", ttl=20).acquire)
    yield
    elsewhere(lease.release)


@pytest.mark.parametrize("address", OUTSIDE + INSIDE)
def test_it_commits_before_the_release(client: Client, address: str, at_release: list[list[str]]) -> None:
    """On a class, a method, an action, above or below the framework's own decorator: the row comes first."""
    response = client.get(address)
    assert response.status_code == 201
    assert at_release == [[response.json()["sold"]]]


@pytest.mark.parametrize("address", OUTSIDE + INSIDE)
def test_what_was_written_before_an_exception_is_rolled_back(client: Client, address: str) -> None:
    """Both frameworks make an answer of an exception: the answer is sent, the rows are rolled back."""
    assert client.get(f"{address}?fail=1").status_code == 400
    assert committed() == []
    assert not elsewhere(get_lock("order:7").locked)


@pytest.mark.parametrize("address", OUTSIDE + INSIDE)
def test_a_taken_lock_answers_409(client: Client, address: str, order_taken: None) -> None:
    """The conflict is answered with a problem document, whatever the framework's own renderers are."""
    response = client.get(address, headers={"accept": "application/json"})
    assert response.status_code == 409
    assert response["Content-Type"] == "application/problem+json"
    assert 1 <= int(response["Retry-After"]) <= 20
    assert committed() == []


@pytest.mark.parametrize("address", OUTSIDE)
@pytest.mark.parametrize("fail", [0, 1])
def test_around_the_view_it_works_under_atomic_requests(
    client: Client, address: str, fail: int, atomic_requests: None
) -> None:
    """Around what the URLconf calls the view is taken out of ATOMIC_REQUESTS."""
    assert client.get(f"{address}?fail=1" if fail else address).status_code == (400 if fail else 201)
    assert len(committed()) == 1 - fail


@pytest.mark.parametrize("address", INSIDE)
def test_inside_the_view_atomic_requests_is_refused(
    client: Client, address: str, atomic_requests: None
) -> None:
    """Inside, ATOMIC_REQUESTS has begun its transaction already: refused, never released early."""
    with pytest.raises(LockTransactionError):
        client.get(address)
    assert committed() == []


def test_the_conflict_page_is_in_chinese(client: Client, order_taken: None) -> None:
    """The page speaks the visitor's language, the time to wait included."""
    page = client.get("/plain/7/", headers=CHINESE).content.decode()
    assert '<html lang="zh-hans" dir="ltr">' in page
    assert "<h1>正忙</h1>" in page
    assert "其他人正在处理此内容，请稍后再试。" in page
    assert "秒后重试。" in page


def test_the_outage_page_is_in_chinese(client: Client, backend_down: str) -> None:
    """The same for the page of an outage."""
    response = client.get("/down/7/", headers=CHINESE)
    assert response.status_code == 503
    page = response.content.decode()
    assert "<h1>暂不可用</h1>" in page
    assert "目前无法安全地完成此操作，请稍后再试。" in page
    assert "请在 5 秒后重试。" in page


def test_the_problem_is_in_chinese(client: Client, order_taken: None) -> None:
    """The detail of a problem document is translated, its type is not."""
    problem = client.get("/plain/7/", headers={"accept-language": "zh-hans"}).json()
    assert problem["detail"] == "其他人正在处理此内容，请稍后再试。"
    assert problem["type"] == "urn:holdfast:problem:lock-busy"
