"""The operations of the JSON interface: each calls a service and answers; `errors` has the problems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.http import HttpResponse
from ninja import Query

from inventory import Line, UnknownSku
from orders import selectors
from orders.after_sale import lifecycle
from orders.http import bodies
from orders.http.api import Request, header, operation, read_by
from orders.http.bodies import Cart, Empty, Extension, Paging, Reserve, ReservedCart
from orders.http.callers import ORDERS, PAY
from orders.http.idempotency import HEADER, KEY_PATTERN, KEY_RULE, client_key, once, write_reservation_key
from orders.http.paging import following, place_of
from orders.http.problems import UNKNOWN_PRODUCT, Problem, invalid, shown
from orders.http.rate_limit import limit_customer
from orders.http.reading import read_cart
from orders.http.responses import address_of, json_answer
from orders.models import SKU_PATTERN, Order
from orders.selling import reservations
from orders.selling.checkout import checkout_reserved, place
from orders.selling.reservations import Reserved
from orders.selling.writing import ClientKey, Receipt

CART: Final = "unknown-product sold-out customer-limit not-for-sale mixed-currencies forbidden busy"
KEYED: Final = "key-missing key-in-progress key-reused too-many-requests"
ENDED: Final = "not-found reservation-gone busy"

_KEY: Final = header(HEADER, pattern=KEY_PATTERN, description=KEY_RULE)


def _created(what: str, identifier: UUID, body: dict[str, Any] | str) -> HttpResponse:
    return json_answer(body, status=201, headers={"Location": address_of(what, identifier)})


# Selling ----------------------------------------------------------------------------------------------------


@operation(
    "POST",
    "/checkout/",
    f"{CART} {KEYED} {ENDED} price-changed",
    answer=bodies.Order,
    made=("id", "order", "order", "pay", "cancel"),
    limited=True,
    headers=[_KEY],
)
@read_by(lambda request: read_cart(request.body))
def checkout(request: Request, wanted: Cart | ReservedCart) -> HttpResponse:
    """Place an order. A repeated Idempotency-Key gets the first answer again."""
    customer = request.auth.customer_of(wanted.customer)
    limit_customer(request, request.auth.scope, customer)
    key = client_key(request, request.auth.scope)

    def sell() -> HttpResponse:
        receipt = _sell(request, wanted, customer, key)
        return _created("order", receipt.id, receipt.text)

    return once(key, sell)


def _sell(request: Request, wanted: Cart | ReservedCart, customer: str, key: ClientKey | None) -> Receipt:
    scope = request.auth.scope
    if isinstance(wanted, ReservedCart):
        made = _reserved(request, wanted.reservation)
        # Staff may buy for another caller: the order belongs to the scope that reserved.
        return checkout_reserved(
            made.id,
            customer=customer,
            key=key,
            scope=made.scope or scope,
            expected_total=wanted.expected_total,
        )
    lines = wanted.cart()
    try:
        return place(
            lines,
            wanted.strategy or None,
            customer=customer,
            key=key,
            scope=scope,
            expected_total=wanted.expected_total,
        )
    except UnknownSku as error:
        raise _pointing_at_unknown(lines, error) from error


def _pointing_at_unknown(lines: Sequence[Line], error: UnknownSku) -> Problem:
    """Point at the lines of an unknown SKU: here it is known where the client wrote them."""
    missing = ((n, line.sku) for n, line in enumerate(lines) if line.sku in error.skus)
    faults = ((f"/lines/{n}/sku", f"{shown(sku)}: no product has this SKU") for n, sku in missing)
    return invalid(*faults, kind=UNKNOWN_PRODUCT)


@operation(
    "POST",
    "/reservations/",
    f"{CART} {KEYED}",
    answer=bodies.Reservation,
    made=("reservation", "reservation", "reservation", "extend", "release"),
    limited=True,
    address="reservations",
    headers=[_KEY],
)
def reserve(request: Request, wanted: Reserve) -> HttpResponse:
    """Reserve units for a while; checkout takes the reservation's id. A repeated key reserves once."""
    scope, customer = request.auth.scope, request.auth.customer_of(wanted.customer)
    limit_customer(request, scope, customer)
    key = client_key(request, scope)

    def keep(made: Reserved) -> None:
        if key is not None:
            write_reservation_key(key, made, selectors.reservation_data(made))

    def promise() -> HttpResponse:
        lines, ttl = wanted.cart(), timedelta(seconds=wanted.ttl)
        try:
            made = reservations.reserve(lines, ttl, customer, scope=scope, record=keep)
        except UnknownSku as error:
            raise _pointing_at_unknown(lines, error) from error
        return _created("reservation", made.id, selectors.reservation_data(made))

    return once(key, promise)


# Reservations -----------------------------------------------------------------------------------------------


def _reserved(request: Request, reservation: UUID) -> Reserved:
    made = reservations.find(reservation)
    request.auth.require_reservation(made)
    return made


@operation("GET", "/reservations/{reservation}/", "not-found", answer=bodies.Reservation)
def reservation(request: Request, reservation: UUID) -> Any:
    """Show a reservation and its state."""
    return selectors.reservation_data(_reserved(request, reservation))


@operation("DELETE", "/reservations/{reservation}/", ENDED, answer=None, address="reservation")
def release(request: Request, reservation: UUID) -> None:
    """Give a reservation's units back before its time."""
    reservations.release(_reserved(request, reservation).id)


@operation("POST", "/reservations/{reservation}/extend/", ENDED, answer=bodies.Reservation)
def extend(request: Request, reservation: UUID, wanted: Extension) -> Any:
    """Let a reservation last for `ttl` seconds from now at least, for a week in all at most."""
    made = _reserved(request, reservation)
    return selectors.reservation_data(reservations.extend(made.id, timedelta(seconds=wanted.ttl)))


# Orders -----------------------------------------------------------------------------------------------------


def _order(request: Request, order: UUID) -> Order:
    found = lifecycle.find_order(order)
    request.auth.require_order(found)
    return found


@operation("GET", "/orders/{order}/", "not-found", answer=bodies.Order)
def order(request: Request, order: UUID) -> Any:
    """Show an order."""
    return selectors.order_data(_order(request, order))


@operation("POST", "/orders/{order}/pay/", "forbidden not-found payment-too-late busy", answer=bodies.Order)
def pay(request: Request, order: UUID, nothing: Empty) -> Any:
    """Note that an order is paid."""
    request.auth.require(PAY)
    return selectors.order_data(lifecycle.pay(_order(request, order).pk))


@operation("POST", "/orders/{order}/cancel/", "not-found order-state busy", answer=bodies.Order)
def cancel(request: Request, order: UUID, nothing: Empty) -> Any:
    """Cancel an order; its units go back."""
    return selectors.order_data(lifecycle.cancel(_order(request, order).pk))


@operation("GET", "/orders/", "invalid-request forbidden", answer=bodies.Orders)
def orders(request: Request, paging: Query[Paging], response: HttpResponse) -> Any:
    """List a page of the caller's orders, the newest first; `next` leads to the following one."""
    caller = request.auth
    if not caller.scope:
        caller.require(ORDERS, "To list orders the caller needs a scope of its own, or the right 'orders'.")
    scope = None if ORDERS in caller.rights else caller.scope
    found = selectors.page_of_orders(scope, place_of(paging, _order_place), paging.limit + 1)
    page = found[: paging.limit]
    place = f"{page[-1].created_at.isoformat()}|{page[-1].pk}" if page else ""
    next_page = following(request, response, paging, found, place)
    return {"orders": selectors.orders_data(page), "next": next_page}


def _order_place(text: str) -> tuple[datetime, UUID]:
    date, _, order_id = text.partition("|")
    created_at = datetime.fromisoformat(date)
    if created_at.utcoffset() != timedelta(0):
        raise ValueError(f"{date}: is not in UTC")
    return created_at, UUID(order_id)


# Products ---------------------------------------------------------------------------------------------------


@operation("GET", "/products/", "invalid-request", answer=bodies.Products, caller=False)
def products(request: Request, paging: Query[Paging], response: HttpResponse) -> Any:
    """List a page of products; `next` leads to the following one."""
    after = place_of(paging, _product_place) or ""
    found = list(selectors.products_for_sale(after, paging.limit + 1))
    page = found[: paging.limit]
    next_page = following(request, response, paging, found, page[-1].sku if page else "")
    return {"products": [selectors.product_data(product) for product in page], "next": next_page}


def _product_place(text: str) -> str:
    if not re.match(SKU_PATTERN, text):
        raise ValueError(f"{text!r}: is no SKU")
    return text
