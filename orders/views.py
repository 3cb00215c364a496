"""The HTTP surface: views parse, call and respond; what goes wrong is answered in `orders.problems`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.views.decorators.http import require_safe

from inventory.domain import Line, UnknownProduct
from inventory.reservations import Reserved, extend, find, release, reserve
from orders import openapi, selectors
from orders.callers import ORDERS, PAY, Caller, caller_of
from orders.idempotency import client_key, once, write_reservation_key
from orders.json_responses import address_of, json_answer
from orders.lifecycle import cancel, find_order, pay
from orders.models import Order
from orders.order_writer import ClientKey, Receipt
from orders.pages import page
from orders.parsing import (
    CheckoutRequest,
    parse_after,
    parse_checkout,
    parse_cursor,
    unknown_products,
    validated,
)
from orders.problem_examples import example
from orders.problems import NO_ORDER, NO_RESERVATION, PROBLEM_TYPES, json_api
from orders.rate_limit import limit_address, limit_customer
from orders.requests import id_in_path, require_small_json
from orders.schemas import EmptyBody, ExtensionBody, ReservationBody
from orders.services import checkout_reserved, place

# JSON ------------------------------------------------------------------------------------------------------


@json_api("POST")
def checkout_view(request: HttpRequest) -> HttpResponse:
    """Place an order: 201 with its address in Location. A repeated key gets the first answer."""
    limit_address(request)
    require_small_json(request)
    caller = caller_of(request)
    wanted = parse_checkout(request.body, strategies=_names_of_strategies)
    limit_customer(request, wanted.customer)
    key = client_key(request, caller.scope)
    return once(key, lambda: _created(_place(wanted, key, caller)))


def _names_of_strategies() -> list[str]:
    return [choice.name for choice in selectors.strategy_choices()]


def _created(receipt: Receipt) -> HttpResponse:
    return json_answer(receipt.body, status=201, headers={"Location": address_of("order", receipt.id)})


def _place(wanted: CheckoutRequest, key: ClientKey | None, caller: Caller) -> Receipt:
    if wanted.reservation is not None:
        made = _own(caller, wanted.reservation)
        scope = made.scope or caller.scope  # staff may buy for somebody: the order is theirs who reserved
        return checkout_reserved(made.basket, customer=wanted.customer, key=key, scope=scope)
    with _naming_unknown(wanted.lines):
        return place(wanted.lines, wanted.strategy, customer=wanted.customer, key=key, scope=caller.scope)


def _own(caller: Caller, basket: UUID) -> Reserved:
    made = find(basket)
    caller.require_reservation(made)
    return made


@contextmanager
def _naming_unknown(lines: Sequence[Line]) -> Iterator[None]:
    try:
        yield
    except UnknownProduct as error:
        # Only here are both known: which SKUs the catalogue lacks, and where the client wrote them.
        raise unknown_products(lines, error.skus) from error


@json_api("POST")
def reservations_view(request: HttpRequest) -> HttpResponse:
    """Reserve units for a while: 201 with the reservation's id and its end. A repeated key reserves once."""
    limit_address(request)
    require_small_json(request)
    caller = caller_of(request)
    wanted = validated(ReservationBody, request.body)
    limit_customer(request, wanted.customer)
    key = client_key(request, caller.scope)
    return once(key, lambda: _reserve(wanted, key, caller.scope))


def _reserve(wanted: ReservationBody, key: ClientKey | None, scope: str) -> HttpResponse:
    def keep(made: Reserved) -> None:
        if key is not None:
            write_reservation_key(key, made, selectors.reservation_data(made))

    lines = wanted.cart()
    with _naming_unknown(lines):
        made = reserve(lines, timedelta(seconds=wanted.ttl), wanted.customer, scope=scope, record=keep)
    location = address_of("reservation", made.basket)
    return json_answer(selectors.reservation_data(made), status=201, headers={"Location": location})


@json_api("GET", "HEAD", "DELETE")
def reservation_view(request: HttpRequest, basket: str) -> HttpResponse:
    """Show a reservation, or give its units back before its time: 204."""
    made = _own(caller_of(request), id_in_path(basket, NO_RESERVATION))
    if request.method == "DELETE":
        release(made.basket)
        return HttpResponse(status=204)
    return json_answer(selectors.reservation_data(made))


@json_api("POST")
def extend_view(request: HttpRequest, basket: str) -> HttpResponse:
    """Let a reservation last longer; the same request again does no harm."""
    require_small_json(request)
    caller = caller_of(request)
    ttl = validated(ExtensionBody, request.body).ttl
    made = _own(caller, id_in_path(basket, NO_RESERVATION))
    made = extend(made.basket, timedelta(seconds=ttl))
    return json_answer(selectors.reservation_data(made))


@json_api("POST")
def pay_view(request: HttpRequest, order_id: str) -> HttpResponse:
    """Note that an order is paid, by a caller with the right to; again and again, if need be."""
    caller = caller_of(request)
    caller.require(PAY, "To note a payment the caller needs the right 'pay'; a provider sends its webhook.")
    return _changed(request, caller, order_id, pay)


@json_api("POST")
def cancel_view(request: HttpRequest, order_id: str) -> HttpResponse:
    """Cancel an order; its units go back."""
    return _changed(request, caller_of(request), order_id, cancel)


def _changed(
    request: HttpRequest, caller: Caller, order_id: str, change: Callable[[UUID], Order]
) -> HttpResponse:
    require_small_json(request)
    validated(EmptyBody, request.body)
    order = change(_order(caller, order_id).pk)
    return json_answer(selectors.order_data(order))


def _order(caller: Caller, order_id: str) -> Order:
    order = find_order(id_in_path(order_id, NO_ORDER))
    caller.require_order(order)
    return order


@require_safe
def openapi_view(request: HttpRequest) -> HttpResponse:
    """Describe this interface for programs."""
    return json_answer(openapi.description())


@json_api("GET", "HEAD")
def order_view(request: HttpRequest, order_id: str) -> HttpResponse:
    """Show an order."""
    return json_answer(selectors.order_data(_order(caller_of(request), order_id)))


@json_api("GET", "HEAD")
def orders_view(request: HttpRequest) -> HttpResponse:
    """List a page of the caller's orders, the newest first; `next` is the address of the following page."""
    caller = caller_of(request)
    if not caller.scope:
        caller.require(ORDERS, "To list orders the caller needs a scope of its own, or the right 'orders'.")
    page = selectors.page_of_orders(
        None if ORDERS in caller.rights else caller.scope, parse_cursor(request.GET.get("cursor", ""))
    )
    following = None
    if len(page) == selectors.PAGE:
        following = f"{request.path}?cursor={selectors.Cursor(page[-1].created_at, page[-1].pk)}"
    return json_answer({"orders": selectors.orders_data(page), "next": following})


@json_api("GET", "HEAD")
def products_view(request: HttpRequest) -> HttpResponse:
    """List a page of products; `next` is the address of the following page, or null."""
    page = selectors.products_for_sale(parse_after(request.GET.get("after", "")))
    products = [selectors.product_data(product) for product in page]
    following = f"{request.path}?after={products[-1]['sku']}" if len(products) == selectors.PAGE else None
    return json_answer({"products": products, "next": following})


# Pages -----------------------------------------------------------------------------------------------------


def start(request: HttpRequest) -> HttpResponse:
    """Say what is here and where."""
    product = selectors.products_for_sale().first()
    context = {"strategy": settings.CHECKOUT_STRATEGY, "example_sku": product.sku if product else "mug"}
    return page(request, "orders/start.html", context)


def shop(request: HttpRequest) -> HttpResponse:
    """Sell a few products to a person, through the same checkout as everyone else."""
    context = {
        "products": selectors.products_for_sale(),
        "strategies": selectors.strategy_choices(),
        "current": settings.CHECKOUT_STRATEGY,
        "key": uuid4().hex,
    }
    return page(request, "orders/shop.html", context)


def problems(request: HttpRequest) -> HttpResponse:
    """Explain every `type` of a problem; each links here."""
    explained = [(kind, example(kind)) for kind in PROBLEM_TYPES]
    return page(request, "orders/problems.html", {"problems": explained})


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    """Lead browsers that ask without being told to the icon."""
    return redirect(static("orders/icon.svg"))
