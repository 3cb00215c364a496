"""System checks see every decorated function that a URLconf leads to, and no other."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from rest_framework.decorators import action, api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

from locking import LockTransactionError, checks, distributed_lock

pytestmark = pytest.mark.django_db(transaction=True)

lock: Any = distributed_lock(key="'a'")


class Orders(ViewSet):
    @method_decorator(lock)
    def list(self, request: Request) -> Response:
        return Response()

    @action(detail=False)
    @method_decorator(lock)
    def pay(self, request: Request) -> Response:
        return Response()

    def retrieve(self, request: Request, pk: str) -> Response:
        return Response()


@api_view(["POST"])
@lock
def below_api_view(request: Request) -> Response:
    return Response()


@lock
@api_view(["POST"])
def above_api_view(request: Request) -> Response:
    return Response()


@csrf_exempt
@lock
def exempt(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Helped(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return self.place()

    @method_decorator(lock)
    def place(self) -> HttpResponse:
        return HttpResponse()


class Held(View):
    @method_decorator(distributed_lock(key="'a'", backend="loose"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


held: Any = distributed_lock(key="'a'", backend="loose")


@method_decorator(distributed_lock(key="'order:'+<order_id>"), name="dispatch")
class ByKey(View):
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return HttpResponse()


@method_decorator(distributed_lock(key="'order:'+<oder_id>+':'+<request.user.pk|'none'>"), name="dispatch")
class ByAnotherKey(View):
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return HttpResponse()


class Feed:
    """A view that is an object, as Django's syndication feeds are."""

    def __call__(self, request: HttpRequest) -> Any:
        return self.items()

    @lock
    def items(self) -> HttpResponse:
        return HttpResponse()


api = NinjaAPI(urls_namespace="reach")


@api.get("/ninja")
@lock
def ninja_operation(request: HttpRequest) -> str:
    return ""


@lock
def own_action(model_admin: Any, request: HttpRequest, queryset: Any) -> None:
    pass


@lock
def site_action(model_admin: Any, request: HttpRequest, queryset: Any) -> None:
    pass


site = admin.AdminSite("reach")
site.add_action(site_action)


@admin.register(Group, site=site)
class GroupAdmin(admin.ModelAdmin):
    actions = (own_action, "method_action")

    @method_decorator(lock)
    def method_action(self, request: HttpRequest, queryset: Any) -> None:
        pass

    @method_decorator(lock)
    def report(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def get_urls(self) -> Any:
        return [path("report/", self.admin_site.admin_view(self.report)), *super().get_urls()]

    @method_decorator(lock)
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        pass


router = SimpleRouter()
router.register("orders", Orders, basename="orders")

urlpatterns = [
    path("", include(router.urls)),
    path("below/", below_api_view),
    path("above/", above_api_view),
    path("exempt/", exempt),
    path("helped/", Helped.as_view()),
    path("held/", Held.as_view()),
    path("by-key/<int:order_id>/", ByKey.as_view()),
    path("by-another/<int:order_id>/", ByAnotherKey.as_view()),
    path("below/<int:order_id>/", include([path("key/", ByKey.as_view())])),
    path("feed/", Feed()),
    path("api/", api.urls),
    path("admin/", site.urls),
]

REFUSED = {
    "Orders.list",
    "Orders.pay",
    "below_api_view",
    "Helped.place",
    "Feed.items",
    "ninja_operation",
    "own_action",
    "site_action",
    "GroupAdmin.method_action",
    "GroupAdmin.save_model",
}


@pytest.fixture(autouse=True)
def _an_alias_that_ignores_open_transactions(settings: Any) -> None:
    """For what may be called inside a transaction."""
    loose = {**settings.LOCKING["default"], "ON_OPEN_TRANSACTION": "ignore"}
    settings.LOCKING = {**settings.LOCKING, "loose": loose}


def told(messages: list[Any]) -> list[str]:
    prefix = f"{__name__}."
    return [message.msg.split(" is locked")[0].removeprefix(prefix) for message in messages]


@pytest.mark.urls(__name__)
def test_every_locked_function_under_atomic_requests_is_told_once(atomic_requests: None) -> None:
    """Of viewsets, API views, Django Ninja, the admin's actions and URLs, and helpers of a view's class."""
    messages = checks.check_atomic_requests()
    inside = told([each for each in messages if each.id == "locking.E006"])
    assert sorted(inside) == sorted(REFUSED)
    assert "locking.E007" not in {each.id for each in messages}


@pytest.mark.urls(__name__)
def test_what_the_admin_calls_in_its_own_transaction_is_always_told() -> None:
    """`save_model` runs inside the admin's transaction also where ATOMIC_REQUESTS is off."""
    (message,) = checks.check_atomic_requests()
    assert (message.id, told([message])) == ("locking.E011", ["GroupAdmin.save_model"])


class NonAtomicList(GroupAdmin):
    changelist_view = method_decorator(transaction.non_atomic_requests)(admin.ModelAdmin.changelist_view)


class OfNonAtomicList:
    urlpatterns = NonAtomicList(Group, site).get_urls()


def test_actions_are_fine_where_the_list_has_no_transaction(atomic_requests: None, settings: Any) -> None:
    """Only the list's view calls them: those that add and change may keep theirs."""
    settings.ROOT_URLCONF = OfNonAtomicList
    inside = told([each for each in checks.check_atomic_requests() if each.id == "locking.E006"])
    assert inside == ["GroupAdmin.save_model"]


@pytest.mark.urls(__name__)
def test_each_of_them_is_refused_indeed(atomic_requests: None, client: Any, admin_client: Any) -> None:
    """The checks tell the truth: a request ends in the error that names the cure."""
    for address in ("/orders/", "/orders/pay/"):
        with pytest.raises(LockTransactionError, match="ATOMIC_REQUESTS is on"):
            client.get(address)
    for address in ("/below/", "/helped/", "/feed/"):
        with pytest.raises(LockTransactionError, match="ATOMIC_REQUESTS is on"):
            client.post(address)
    for address in ("/above/", "/exempt/", "/held/"):
        assert client.post(address).status_code == 200
    assert admin_client.get("/admin/auth/group/report/").status_code == 200


@pytest.mark.urls(__name__)
def test_a_key_that_its_route_doesnt_have_is_told() -> None:
    """A decorated `dispatch` takes any argument, so a misspelled name would be an error at each request."""
    (message,) = checks.check_keys()
    assert message.id == "locking.E012"
    assert "ByAnotherKey" in message.msg
    assert message.msg.endswith("but a route to it has no argument 'oder_id'; it has order_id.")
