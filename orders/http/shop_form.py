"""The shop without JavaScript: a form places the same order as the checkout, and the page answers."""

from __future__ import annotations

import hashlib
import json
import re
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from orders.currencies import written
from orders.http.bodies import Cart
from orders.http.errors import problem_of
from orders.http.idempotency import once
from orders.http.problems import Problem
from orders.http.rate_limit import limit_address
from orders.http.reading import checked
from orders.http.responses import json_answer
from orders.selling.checkout import place
from orders.selling.writing import CREATED, ClientKey

SCOPE = "shop"
"""Whose the keys of the form are: customers of the JSON interface have keys of their own."""

QUANTITY = "quantity-"
"""Prefix of the fields: `quantity-mug` is how many mugs."""


KEY = "key"
"""The field with the page's own key: a form that is sent twice places one order."""


@transaction.non_atomic_requests
@require_POST
def shop_order(request: HttpRequest) -> HttpResponse:
    """Place the order of a form and go back to the shop, which says what became of it."""
    try:
        limit_address(request)
        wanted, key = _wanted(request.POST), _key(request.POST)
        answer = json.loads(once(key, lambda: _placed(wanted, key)).content)
    except Exception as error:
        messages.error(request, _in_words(problem_of(error)))
    else:
        _tell(request, answer)
    return redirect("orders:shop")


def _placed(wanted: Cart, key: ClientKey | None) -> HttpResponse:
    return json_answer(place(wanted.cart(), strategy=wanted.strategy or None, key=key).text, status=CREATED)


def _tell(request: HttpRequest, answer: dict[str, Any]) -> None:
    """Say what the first request of this key came to: an order, or a refusal that was kept."""
    if "total" in answer:
        total = written(Decimal(answer["total"]), answer["currency"])
        messages.success(request, _("Ordered for %(total)s %(currency)s.") % (answer | {"total": total}))
    else:
        messages.error(request, f"{_(answer['title'])}: {answer['detail']}")


def _key(form: QueryDict) -> ClientKey | None:
    """Return the key of the page that was sent; its fields are the fingerprint, without the CSRF token."""
    key = form.get(KEY, "")
    if not re.fullmatch("[0-9a-f]{32}", key):
        return None
    fields = sorted((name, form[name]) for name in form if name != "csrfmiddlewaretoken")
    return ClientKey(SCOPE, key, hashlib.sha256(json.dumps(fields).encode()).hexdigest())


def _wanted(form: QueryDict) -> Cart:
    """Read the form as the body of a checkout, so that one model validates both."""
    fields = ((name.removeprefix(QUANTITY), str(form[name])) for name in form if name.startswith(QUANTITY))
    lines = [{"sku": sku, "quantity": _number(text)} for sku, text in fields if text not in ("", "0")]
    body = {"lines": lines} | ({"strategy": form["strategy"]} if form.get("strategy") else {})
    return checked(Cart, body)


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) < 9 else text


def _in_words(problem: Problem) -> str:
    return f"{_(problem.kind.title)}: {problem.detail}"
