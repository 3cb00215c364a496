"""The shop without JavaScript: a form places the same order as the checkout, and the page answers."""

from __future__ import annotations

import json

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from orders import selectors
from orders.parsing import CheckoutRequest, parse_checkout
from orders.problems import Problem, problem_of
from orders.rate_limit import limit_address
from orders.services import place

QUANTITY = "quantity-"
"""Prefix of the fields: `quantity-mug` is how many mugs."""


@transaction.non_atomic_requests
@require_POST
def shop_order(request: HttpRequest) -> HttpResponse:
    """Place the order of a form and go back to the shop, which says what became of it."""
    try:
        limit_address(request)
        wanted = _wanted(request.POST)
        receipt = place(wanted.lines, strategy=wanted.strategy)
    except Exception as error:
        messages.error(request, _in_words(problem_of(error)))
    else:
        total = receipt.body["total"]
        messages.success(request, _("Ordered for %(total)s.") % {"total": total})
    return redirect("orders:shop")


def _wanted(form: QueryDict) -> CheckoutRequest:
    """Read the form as the body of a checkout, so that one parser judges both."""
    fields = ((name.removeprefix(QUANTITY), str(form[name])) for name in form if name.startswith(QUANTITY))
    lines = [{"sku": sku, "quantity": _number(text)} for sku, text in fields if text not in ("", "0")]
    body = {"lines": lines} | ({"strategy": form["strategy"]} if form.get("strategy") else {})
    return parse_checkout(json.dumps(body).encode(), strategies=_names)


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) < 9 else text


def _names() -> list[str]:
    return [choice.name for choice in selectors.strategy_choices()]


def _in_words(problem: Problem) -> str:
    return f"{_(problem.kind.title)}: {problem.detail}"
