"""The checkout without its reading by hand, for `benchmarks.checkout.frameworks`."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse

from orders.http import bodies, operations
from orders.http.api import Request, operation
from orders.http.bodies import Cart
from orders.http.responses import address_of

MADE = ("id", "order")


@operation("POST", "/checkout/read/", "sold-out", answer=bodies.Order, made=MADE, limited=True)
def read(request: Request, wanted: Cart) -> HttpResponse:
    """Place an order; django-ninja reads the request."""
    return operations.checkout(request, wanted)


@operation("POST", "/checkout/typed/", "sold-out", answer=bodies.Order, made=MADE, limited=True)
def typed(request: Request, wanted: Cart, response: HttpResponse) -> Any:
    """Place an order; django-ninja reads the request and writes the answer."""
    receipt = operations._sell(request, wanted, wanted.customer, None)
    response.headers["Location"] = address_of("order", receipt.id)
    return receipt.body
