"""The checkout through django-ninja, twice: answering by itself, and by a typed answer."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from ninja import NinjaAPI, Status
from orders.requests import require_small_json
from orders.schemas import Customer, Lines, OrderData, RequestBody

from inventory.domain import Line
from orders.http.callers import caller_of
from orders.http.idempotency import client_key, once
from orders.http.problems import problem_of, respond
from orders.http.rate_limit import limit_address, limit_customer
from orders.http.responses import address_of, json_answer
from orders.services import place


class Cart(RequestBody):
    lines: Lines
    customer: Customer = ""

    def cart(self):
        return tuple(Line(line.sku, line.quantity) for line in self.lines)


api = NinjaAPI(docs_url=None, openapi_url=None)


@api.exception_handler(Exception)
def answer(request: HttpRequest, error: Exception) -> HttpResponse:
    """Answer an error as the shop does."""
    return respond(problem_of(error))


@api.post("lean/", response={201: OrderData})
def lean(request: HttpRequest, wanted: Cart):
    """Place an order."""
    limit_address(request)
    require_small_json(request)
    caller = caller_of(request)
    limit_customer(request, wanted.customer)
    key = client_key(request, caller.scope)

    def work() -> HttpResponse:
        receipt = place(wanted.cart(), None, customer=wanted.customer, key=key, scope=caller.scope)
        return json_answer(receipt.body, status=201, headers={"Location": address_of("order", receipt.id)})

    return once(key, work)


@api.post("typed/", response={201: OrderData})
def typed(request: HttpRequest, wanted: Cart, response: HttpResponse):
    """Place an order."""
    limit_address(request)
    require_small_json(request)
    caller = caller_of(request)
    limit_customer(request, wanted.customer)
    client_key(request, caller.scope)
    receipt = place(wanted.cart(), None, customer=wanted.customer, scope=caller.scope)
    response["Location"] = address_of("order", receipt.id)
    return Status(201, receipt.body)


urlpatterns = [path("", include("orders.urls")), path("checkout/", api.urls)]
