"""System checks see every decorated function that a URLconf leads to, and no other."""

from functools import wraps
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import Group
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
    @method_decorator(distributed_lock(key="'a'", on_open_transaction="ignore"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


held: Any = distributed_lock(key="'a'", on_open_transaction="ignore")


class ChecksStock:
    def dispatch(self, request: HttpRequest) -> Any:
        if not Group.objects.exists():
            return HttpResponse(status=409)
        return super().dispatch(request)  # type: ignore[misc]


class Checked(ChecksStock, View):
    @method_decorator(held)
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Locked(View):
    @method_decorator(held)
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class PassesOn(Locked):
    def dispatch(self, request: HttpRequest, **kwargs: Any) -> Any:
        self.pk, self.is_form = kwargs["pk"], "form" in self.request.headers["content-type"]
        return super().dispatch(request, **kwargs)


class CallsAHelper(Locked):
    def dispatch(self, request: HttpRequest) -> Any:
        self.check_stock()
        return super().dispatch(request)

    def check_stock(self) -> None:
        pass


class ReadsLazily(Locked):
    def dispatch(self, request: HttpRequest) -> Any:
        self.empty = request.basket.is_empty  # type: ignore[attr-defined]
        return super().dispatch(request)


def checked(view: Any) -> Any:
    @wraps(view)
    def check(*args: Any) -> Any:
        return view(*args)

    return check


class ReadsInADecorator(Locked):
    @checked
    def dispatch(self, request: HttpRequest) -> Any:
        return super().dispatch(request)


@method_decorator(csrf_exempt, name="dispatch")
class BehindDjangosMixin(LoginRequiredMixin, ChecksStock, Locked):
    pass


@method_decorator(held, name="dispatch")
class LockedDispatch(View):
    pass


class OverridesALockedDispatch(ChecksStock, LockedDispatch):
    pass


@method_decorator(lock, name="dispatch")
class CheckedUnderTheLock(ChecksStock, View):
    def post(self, request: HttpRequest) -> HttpResponse:
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
    path("checked/", Checked.as_view()),
    path("under/", CheckedUnderTheLock.as_view()),
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
def test_a_dispatch_that_runs_before_the_lock_is_told() -> None:
    """A mixin's check is outside of a locked method, and inside of a locked `dispatch`."""
    (message,) = checks.check_dispatch()
    assert (message.id, told([message])) == ("locking.W005", ["Checked.post"])
    assert "ChecksStock.dispatch runs before the lock" in message.msg
    assert "SILENCED_SYSTEM_CHECKS" in str(message.hint)


@pytest.mark.parametrize(
    ("view", "before"),
    [
        (Locked, []),
        (PassesOn, []),
        (CallsAHelper, ["CallsAHelper"]),
        (ReadsLazily, ["ReadsLazily"]),
        (ReadsInADecorator, ["ReadsInADecorator"]),
        (BehindDjangosMixin, ["ChecksStock"]),
        (LockedDispatch, []),
        (OverridesALockedDispatch, ["ChecksStock"]),
        (CheckedUnderTheLock, []),
    ],
)
def test_only_a_dispatch_that_may_read_is_told(view: Any, before: list[str]) -> None:
    """Silent is one that passes the request on, and one under the lock; told is every other, once."""
    messages = list(checks._check_dispatch(view))
    told_of = [message.msg.split("but ")[1].split(".dispatch")[0].rpartition(".")[2] for message in messages]
    assert told_of == before
