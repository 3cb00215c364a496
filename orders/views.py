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
from inventory.reservations import release, reserve
from orders import openapi, selectors
from orders.idempotency import client_key, once
from orders.json_responses import address_of, json_answer
from orders.lifecycle import cancel, pay
from orders.models import Order
from orders.order_writer import ClientKey, Receipt
from orders.pages import page
from orders.parsing import (
    MAX_BODY_BYTES,
    CheckoutRequest,
    parse_after,
    parse_checkout,
    parse_nothing,
    parse_reservation,
    unknown_products,
)
from orders.problem_examples import example
from orders.problems import MEDIA_TYPE, NOT_FOUND, PROBLEM_TYPES, TOO_LARGE, Problem, json_api
from orders.rate_limit import limit_address, limit_customer
from orders.services import checkout_reserved, place

# JSON ------------------------------------------------------------------------------------------------------


@json_api("POST")
def checkout_view(request: HttpRequest) -> HttpResponse:
    """Place an order: 201 with its address in Location. A repeated key gets the first answer."""
    limit_address(request)
    _require_small_json(request)
    wanted = parse_checkout(request.body, strategies=_names_of_strategies)
    limit_customer(request, wanted.customer)
    key = client_key(request, wanted.customer)
    return once(key, lambda: _created(_place(wanted, key)))


def _names_of_strategies() -> list[str]:
    return [choice.name for choice in selectors.strategy_choices()]


def _created(receipt: Receipt) -> HttpResponse:
    return json_answer(receipt.body, status=201, headers={"Location": address_of("order", receipt.id)})


def _place(wanted: CheckoutRequest, key: ClientKey | None) -> Receipt:
    if wanted.reservation is not None:
        return checkout_reserved(wanted.reservation, customer=wanted.customer, key=key)
    with _naming_unknown(wanted.lines):
        return place(wanted.lines, strategy=wanted.strategy, customer=wanted.customer, key=key)


@contextmanager
def _naming_unknown(lines: Sequence[Line]) -> Iterator[None]:
    try:
        yield
    except UnknownProduct as error:
        # Only here are both known: which SKUs the catalogue lacks, and where the client wrote them.
        raise unknown_products(lines, error.skus) from error


@json_api("POST")
def reservations_view(request: HttpRequest) -> HttpResponse:
    """Keep units for a while: 201 with the reservation's id and its end."""
    limit_address(request)
    _require_small_json(request)
    wanted = parse_reservation(request.body)
    limit_customer(request, wanted.customer)
    with _naming_unknown(wanted.lines):
        made = reserve(wanted.lines, timedelta(seconds=wanted.ttl), wanted.customer)
    location = address_of("reservation", made.basket)
    return json_answer(selectors.reservation_data(made), status=201, headers={"Location": location})


@json_api("DELETE")
def reservation_view(request: HttpRequest, basket: str) -> HttpResponse:
    """Give a reservation's units back before its time: 204."""
    release(_uuid(basket, "There is no reservation of this id."))
    return HttpResponse(status=204)


@json_api("POST")
def pay_view(request: HttpRequest, order_id: str) -> HttpResponse:
    """Note that an order is paid; again and again, if need be."""
    return _changed(request, order_id, pay)


@json_api("POST")
def cancel_view(request: HttpRequest, order_id: str) -> HttpResponse:
    """Cancel an order; its units go back."""
    return _changed(request, order_id, cancel)


def _changed(request: HttpRequest, order_id: str, change: Callable[[UUID], Order]) -> HttpResponse:
    _require_small_json(request)
    parse_nothing(request.body)
    order = change(_uuid(order_id, "There is no order of this id."))
    return json_answer(selectors.order_data(order))


def _uuid(text: str, missing: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Problem(NOT_FOUND, missing) from None


@require_safe
def openapi_view(request: HttpRequest) -> HttpResponse:
    """Describe this interface for programs."""
    return json_answer(openapi.description())


def _require_small_json(request: HttpRequest) -> None:
    """Refuse by the headers alone, before a byte of the body is read."""
    charset = (request.content_params or {}).get("charset", "utf-8")
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "identity")
    if request.content_type != "application/json" or charset.lower() not in ("utf-8", "utf8"):
        shown = request.headers.get("Content-Type") or "missing"
        raise Problem(MEDIA_TYPE, f"Content-Type is {shown[:80]}; send application/json in UTF-8.")
    if encoding.lower() != "identity":
        raise Problem(MEDIA_TYPE, f"Content-Encoding is {encoding[:80]}; send the body uncompressed.")
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY_BYTES:
        raise Problem(TOO_LARGE, f"The body is larger than {MAX_BODY_BYTES} bytes.")


@json_api("GET", "HEAD")
def order_view(request: HttpRequest, order_id: str) -> HttpResponse:
    """Show an order."""
    order = selectors.find_order(order_id)
    if order is None:
        raise Problem(NOT_FOUND, "There is no order of this id.")
    return json_answer(selectors.order_data(order))


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
