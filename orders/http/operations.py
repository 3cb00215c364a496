"""The operations of the JSON interface: each calls a service and answers; errors become problems elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.http import HttpResponse
from ninja import Query

from inventory import reservations
from inventory.domain import Line, UnknownProduct
from inventory.reservations import Reserved
from orders import lifecycle, selectors
from orders.http import bodies, problems
from orders.http.api import Request, header, operation, read_by
from orders.http.bodies import Cart, Empty, Extension, Paging, Reserve, ReservedCart
from orders.http.callers import ORDERS, PAY
from orders.http.errors import unknown_products
from orders.http.idempotency import HEADER, KEY_PATTERN, KEY_RULE, client_key, once, write_reservation_key
from orders.http.paging import following, place_of
from orders.http.rate_limit import limit_customer
from orders.http.reading import read_cart
from orders.http.responses import created
from orders.models import Order
from orders.order_writer import ClientKey, Receipt
from orders.services import checkout_reserved, place

CART: Final = (
    problems.UNKNOWN_PRODUCT,
    problems.SOLD_OUT,
    problems.LIMIT,
    problems.NOT_FOR_SALE,
    problems.MIXED_CURRENCIES,
    problems.KEY_MISSING,
    problems.KEY_IN_PROGRESS,
    problems.KEY_REUSED,
    problems.TOO_MANY,
    problems.BUSY,
    problems.FORBIDDEN,
)
"""How a cart may be refused."""

_KEY: Final = header(HEADER, pattern=KEY_PATTERN, description=KEY_RULE)


def _made(what: str, member: str, *operations: str) -> dict[str, Any]:
    """Describe that the answer's `member` is the parameter `what` of these operations."""
    parameters = {what: f"$response.body#/{member}"}
    links = {name: {"operationId": name, "parameters": parameters} for name in operations}
    return {"links": links, "headers": {"Location": {"schema": {"type": "string"}}}}


_LISTED: Final = {"headers": {"Link": {"schema": {"type": "string"}}}}


# Selling ----------------------------------------------------------------------------------------------------


@operation(
    "POST",
    "/checkout/",
    "Place an order. A repeated Idempotency-Key gets the first answer again.",
    *CART,
    problems.NOT_FOUND,
    problems.RESERVATION_GONE,
    answer=bodies.Order,
    status=201,
    limited=True,
    good=_made("order", "id", "order", "pay", "cancel"),
    parameters=[_KEY],
)
@read_by(lambda request: read_cart(request.body))
def checkout(request: Request, wanted: Cart | ReservedCart) -> HttpResponse:
    """Sell the lines of a cart, or what was reserved."""
    customer = request.auth.customer_of(wanted.customer)
    limit_customer(request, request.auth.scope, customer)
    key = client_key(request, request.auth.scope)

    def sell() -> HttpResponse:
        receipt = _sell(request, wanted, customer, key)
        return created("order", receipt.id, receipt.body)

    return once(key, sell)


def _sell(request: Request, wanted: Cart | ReservedCart, customer: str, key: ClientKey | None) -> Receipt:
    scope = request.auth.scope
    if isinstance(wanted, ReservedCart):
        made = _reserved(request, wanted.reservation)
        # Staff may buy for another caller: the order belongs to the scope that reserved.
        return checkout_reserved(made.basket, customer=customer, key=key, scope=made.scope or scope)
    lines = wanted.cart()
    with _pointing_at_unknown(lines):
        return place(lines, wanted.strategy or None, customer=customer, key=key, scope=scope)


@contextmanager
def _pointing_at_unknown(lines: Sequence[Line]) -> Iterator[None]:
    """Point at the lines of an unknown SKU: here it is known where the client wrote them."""
    try:
        yield
    except UnknownProduct as error:
        unknown = [(f"/lines/{n}/sku", line.sku) for n, line in enumerate(lines) if line.sku in error.skus]
        raise unknown_products(unknown) from error


@operation(
    "POST",
    "/reservations/",
    "Reserve units for a while; checkout takes the reservation's id. A repeated key reserves once.",
    *CART,
    answer=bodies.Reservation,
    status=201,
    limited=True,
    address="reservations",
    good=_made("reservation", "reservation", "reservation", "extend", "release"),
    parameters=[_KEY],
)
def reserve(request: Request, wanted: Reserve) -> HttpResponse:
    """Reserve the lines of a cart."""
    scope, customer = request.auth.scope, request.auth.customer_of(wanted.customer)
    limit_customer(request, scope, customer)
    key = client_key(request, scope)

    def keep(made: Reserved) -> None:
        if key is not None:
            write_reservation_key(key, made, selectors.reservation_data(made))

    def promise() -> HttpResponse:
        lines = wanted.cart()
        with _pointing_at_unknown(lines):
            made = reservations.reserve(lines, timedelta(seconds=wanted.ttl), customer, scope=scope, record=keep)
        return created("reservation", made.basket, selectors.reservation_data(made))

    return once(key, promise)


# Reservations -----------------------------------------------------------------------------------------------


def _reserved(request: Request, basket: UUID) -> Reserved:
    made = reservations.find(basket)
    request.auth.require_reservation(made)
    return made


@operation(
    "GET",
    "/reservations/{reservation}/",
    "Show a reservation and its state.",
    problems.NOT_FOUND,
    answer=bodies.Reservation,
)
def reservation(request: Request, reservation: UUID) -> Any:
    """Show a reservation."""
    return selectors.reservation_data(_reserved(request, reservation))


@operation(
    "DELETE",
    "/reservations/{reservation}/",
    "Give a reservation's units back before its time.",
    problems.NOT_FOUND,
    problems.RESERVATION_GONE,
    problems.BUSY,
    answer=None,
    status=204,
    address="reservation",
)
def release(request: Request, reservation: UUID) -> None:
    """Release a reservation."""
    reservations.release(_reserved(request, reservation).basket)


@operation(
    "POST",
    "/reservations/{reservation}/extend/",
    "Let a reservation last for `ttl` seconds from now at least, for a week in all at most.",
    problems.NOT_FOUND,
    problems.RESERVATION_GONE,
    problems.BUSY,
    answer=bodies.Reservation,
)
def extend(request: Request, reservation: UUID, wanted: Extension) -> Any:
    """Extend a reservation; the same request again does no harm."""
    made = _reserved(request, reservation)
    return selectors.reservation_data(reservations.extend(made.basket, timedelta(seconds=wanted.ttl)))


# Orders -----------------------------------------------------------------------------------------------------


def _order(request: Request, order: UUID) -> Order:
    found = lifecycle.find_order(order)
    request.auth.require_order(found)
    return found


@operation("GET", "/orders/{order}/", "Show an order.", problems.NOT_FOUND, answer=bodies.Order)
def order(request: Request, order: UUID) -> Any:
    """Show an order."""
    return selectors.order_data(_order(request, order))


@operation(
    "POST",
    "/orders/{order}/pay/",
    "Note that an order is paid.",
    problems.FORBIDDEN,
    problems.NOT_FOUND,
    problems.TOO_LATE,
    problems.BUSY,
    answer=bodies.Order,
)
def pay(request: Request, order: UUID, nothing: Empty) -> Any:
    """Note a payment; the same request again does no harm."""
    request.auth.require(PAY, "To note a payment the caller needs the right 'pay'; a provider sends its webhook.")
    return selectors.order_data(lifecycle.pay(_order(request, order).pk))


@operation(
    "POST",
    "/orders/{order}/cancel/",
    "Cancel an order.",
    problems.NOT_FOUND,
    problems.ORDER_STATE,
    problems.BUSY,
    answer=bodies.Order,
)
def cancel(request: Request, order: UUID, nothing: Empty) -> Any:
    """Cancel an order; its units go back."""
    return selectors.order_data(lifecycle.cancel(_order(request, order).pk))


@operation(
    "GET",
    "/orders/",
    "List a page of the caller's orders, the newest first; `next` leads to the following one.",
    problems.INVALID,
    problems.FORBIDDEN,
    answer=bodies.Orders,
    good=_LISTED,
)
def orders(request: Request, paging: Query[Paging], response: HttpResponse) -> Any:
    """List orders."""
    caller = request.auth
    if not caller.scope:
        caller.require(ORDERS, "To list orders the caller needs a scope of its own, or the right 'orders'.")
    scope = None if ORDERS in caller.rights else caller.scope
    found = selectors.page_of_orders(scope, place_of(paging, _order_place), paging.limit + 1)
    page, following_page = following(
        request, response, paging, found, lambda last: f"{last.created_at.isoformat()}|{last.pk}"
    )
    return {"orders": selectors.orders_data(page), "next": following_page}


def _order_place(text: str) -> tuple[datetime, UUID]:
    date, _, order_id = text.partition("|")
    created_at = datetime.fromisoformat(date)
    if created_at.utcoffset() != timedelta(0):
        raise ValueError(f"{date}: is not in UTC")
    return created_at, UUID(order_id)


# Products ---------------------------------------------------------------------------------------------------


@operation(
    "GET",
    "/products/",
    "List a page of products; `next` leads to the following one.",
    problems.INVALID,
    answer=bodies.Products,
    good=_LISTED,
    caller=False,
)
def products(request: Request, paging: Query[Paging], response: HttpResponse) -> Any:
    """List products."""
    after = place_of(paging, _product_place) or ""
    found = list(selectors.products_for_sale(after, paging.limit + 1))
    page, following_page = following(request, response, paging, found, lambda last: str(last.sku))
    return {"products": [selectors.product_data(product) for product in page], "next": following_page}


def _product_place(text: str) -> str:
    return Line(text, 1).sku
