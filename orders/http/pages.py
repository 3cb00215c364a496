"""The shop's pages: the start, the shop, the documents of the JSON interface."""

from __future__ import annotations

import json
from uuid import uuid4

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.views.decorators.http import require_safe

from orders import selectors
from orders.http.openapi import describe
from orders.http.problems import PROBLEM_TYPES, Problem
from orders.http.responses import json_answer
from orders.pages import CONTENT_SECURITY_POLICY, page
from orders.selling.strategies import choices

SWAGGER_POLICY = f"{CONTENT_SECURITY_POLICY}; img-src 'self' data:; style-src 'self' 'unsafe-inline'"
"""Swagger UI draws its arrows by data: addresses and styles its elements as it goes."""


def start(request: HttpRequest) -> HttpResponse:
    """Say what is here and where."""
    product = selectors.products_for_sale().first()
    context = {"strategy": settings.CHECKOUT_STRATEGY, "example_sku": product.sku if product else "mug"}
    return page(request, "orders/start.html", context)


def shop(request: HttpRequest) -> HttpResponse:
    """Sell a few products to a person, through the same checkout as everyone else."""
    context = {
        "products": selectors.products_for_sale(),
        "strategies": choices(),
        "current": settings.CHECKOUT_STRATEGY,
        "key": uuid4().hex,
    }
    return page(request, "orders/shop.html", context)


def problems(request: HttpRequest) -> HttpResponse:
    """Explain every `type` of a problem; each links here."""
    explained = [
        (kind, json.dumps(Problem(kind, **kind.members).document(), indent=2)) for kind in PROBLEM_TYPES
    ]
    return page(request, "orders/problems.html", {"problems": explained})


def docs(request: HttpRequest) -> HttpResponse:
    """Show the JSON interface, and let the reader try it."""
    response = page(request, "orders/docs.html", {})
    response["Content-Security-Policy"] = SWAGGER_POLICY
    return response


@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    """Describe the JSON interface for programs."""
    return json_answer(describe())


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    """Lead browsers to the icon that they ask for by default."""
    return redirect(static("orders/icon.svg"))
