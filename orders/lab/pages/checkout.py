"""The lab's own checkout: a cart and a strategy in, an order or the reason out. Made to be load-tested."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from locking import BackendUnavailable
from orders.lab.cart import Busy, Cart, SoldOut, UnknownProduct
from orders.lab.strategies import Strategy, get_strategy


@csrf_exempt  # it reads no cookie, and a form can't send this content type
@require_POST
def checkout(request: HttpRequest) -> JsonResponse:
    """Sell products of the lab: 201 with the order's id, 400, 409 sold out, 503 busy or no Redis.

    The body names strategy and cart, such as `{"strategy": "row_lock", "cart": {"mug": 1}}`. It is there
    where the setting `LAB_CHECKOUT` is true.
    """
    if not settings.LAB_CHECKOUT:
        raise Http404("LAB_CHECKOUT is false")
    if request.content_type != "application/json":
        return _refusal(415, "send Content-Type: application/json")
    try:
        strategy, cart = _parsed(json.loads(request.body))
        return JsonResponse({"order": str(strategy.sell(cart))}, status=201)
    except (ValueError, UnknownProduct) as error:  # also no JSON, an invalid cart, an unknown strategy
        return _refusal(400, str(error))
    except SoldOut as error:
        return _refusal(409, str(error))
    except (Busy, BackendUnavailable) as error:
        return _refusal(503, str(error))


def _parsed(body: Any) -> tuple[Strategy, Cart]:
    if not isinstance(body, dict) or body.keys() != {"strategy", "cart"}:
        raise ValueError('the body must be an object with "strategy" and "cart"')
    return get_strategy(body["strategy"]), Cart(body["cart"])


def _refusal(status: int, message: str) -> JsonResponse:
    return JsonResponse({"message": message}, status=status)
