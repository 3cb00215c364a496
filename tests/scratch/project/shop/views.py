"""The same sale twice: under a lock by hand, and under the decorator."""

from typing import Any

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse

from locking import distributed_lock

from .models import Product, Sale


def sell() -> HttpResponse:
    """Read, decide, write: right as long as no other request does it at the same time."""
    product = Product.objects.get()
    _redis().rpush("reads", 1)
    if product.on_hand < 1:
        return HttpResponse("sold out", status=409)
    product.on_hand -= 1
    product.save()
    Sale.objects.create()
    return HttpResponse("sold", status=201)


def by_hand(request: HttpRequest) -> HttpResponse:
    """What everyone writes first: ATOMIC_REQUESTS commits after this function, so after the release."""
    with cache.lock("mug", timeout=30):  # type: ignore[attr-defined]
        response = sell()
    linger(request)
    return response


@distributed_lock(key="'mug'", wait=30)
def decorated(request: HttpRequest) -> HttpResponse:
    """The same under the decorator: the commit comes first."""
    response = sell()
    linger(request)
    return response


def linger(request: HttpRequest) -> None:
    """With `?linger=SECONDS`, end only when a second buyer has read, or after that time if none can."""
    if "linger" in request.GET:
        _redis().set("lingering", 1)
        for _ in ("this buyer's own read", "the second buyer's"):
            _redis().blpop(["reads"], timeout=int(request.GET["linger"]))


def _redis() -> Any:
    return cache.client.get_client()  # type: ignore[attr-defined]
