"""What a checkout is compared with: views written by hand, with the ORM.

They take the same request, and those that sell write the same order and item as the shop; but the stock is a
number in the row of a product, as in most projects, without a ledger. None of them is a part of the shop;
`unlocked` oversells.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.db import connection, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

import orders.models
from inventory import Line, Stock
from locking import distributed_lock
from orders.lab.models import Product
from orders.models import Order, OrderItem


@csrf_exempt
def empty(request: HttpRequest) -> HttpResponse:
    """Do nothing."""
    return HttpResponse()


@csrf_exempt
def select(request: HttpRequest) -> HttpResponse:
    """Ask the database for a 1."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()
    return HttpResponse()


@csrf_exempt
@transaction.atomic
def unlocked(request: HttpRequest) -> HttpResponse:
    """Read, compute, save: oversells."""
    return _sell(Product.objects.all(), _wanted(request))


@csrf_exempt
@transaction.atomic
def select_for_update(request: HttpRequest) -> HttpResponse:
    """The same with the row locked first: what the documentation of Django would have one write."""
    return _sell(Product.objects.select_for_update(), _wanted(request))


def _sku(request: HttpRequest) -> str:
    return f"sku:{_wanted(request)['sku']}"


@csrf_exempt
@distributed_lock(key=_sku, wait=10.0)
def locked(request: HttpRequest) -> HttpResponse:
    """The unlocked view under this project's decorator."""
    return _sell(Product.objects.all(), _wanted(request))


@csrf_exempt
def plain_write(request: HttpRequest) -> HttpResponse:
    """Sell by `inventory` under `combined`, and write with the ORM, as the examples' bookshop does."""
    line = _wanted(request)
    product = orders.models.Product.objects.get(sku=line["sku"])

    def write(lines: tuple[Line, ...]) -> Order:
        order = Order.objects.create(total=product.price * line["quantity"], strategy="plain write")
        OrderItem.objects.create(
            order=order,
            product=product,
            name=product.name,
            quantity=line["quantity"],
            unit_price=product.price,
        )
        return order

    order = Stock("combined").sell({product.sku: line["quantity"]}, cause=f"form {uuid.uuid4()}", write=write)
    return JsonResponse({"id": str(order.pk)}, status=201)


def _wanted(request: HttpRequest) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(request.body)["lines"][0]
    return line


def _sell(products: QuerySet[Product], line: dict[str, Any]) -> HttpResponse:
    product, quantity = products.get(sku=line["sku"]), line["quantity"]
    if product.on_hand < quantity:
        return JsonResponse({"error": "sold out"}, status=409)
    product.on_hand -= quantity
    product.save(update_fields=["on_hand"])
    order = Order.objects.create(total=product.price * quantity, strategy="by hand")
    OrderItem.objects.create(
        order=order, product_id=product.pk, name=product.name, quantity=quantity, unit_price=product.price
    )
    return JsonResponse({"id": str(order.pk)}, status=201)
