"""How often one buyer may ask for stock: `CHECKOUT_RATE` requests per minute, counted in Django's cache.

The minute begins with the first request and is measured by the cache server, not by the workers' clocks.
"""

from __future__ import annotations

import logging
from urllib.parse import quote

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest

from orders.problems import TOO_MANY, Problem

logger = logging.getLogger(__name__)

WINDOW = 60  # seconds


def limit_address(request: HttpRequest) -> None:
    """Count a request by its address, before its body is read, and refuse one too many.

    A client names its customer itself: without this it would name another one each time.

    Raises:
        Problem: there were `settings.CHECKOUT_RATE_PER_ADDRESS` in this minute already.
    """
    _limit(f"address:{request.META.get('REMOTE_ADDR', '')}", settings.CHECKOUT_RATE_PER_ADDRESS)


def limit_customer(request: HttpRequest, customer: str) -> None:
    """Count a request of one customer at one address, and refuse one too many.

    Args:
        request: its address counts too, so that nobody uses up what another customer may ask.
        customer: who asks; anonymous clients are counted by their address alone.

    Raises:
        Problem: there were `settings.CHECKOUT_RATE` in this minute already.
    """
    who = f"{request.META.get('REMOTE_ADDR', '')}:{quote(customer, safe='')}"
    _limit(f"customer:{who}", settings.CHECKOUT_RATE)


def _limit(who: str, most: int) -> None:
    if not most:
        return
    name = f"rate:{who}"
    if _counted(name) > most:
        raise Problem(
            TOO_MANY,
            f"More than {most} requests in a minute; nothing was done.",
            headers={"Retry-After": str(_seconds_left(name))},
        )


def _counted(name: str) -> int:
    """Count one more under `name`; 0 when the cache can't: a shop without its counter goes on selling."""
    try:
        cache.add(name, 0, timeout=WINDOW)
        return int(cache.incr(name))
    except Exception as error:  # each cache has errors of its own
        logger.warning("a request couldn't be counted, and was let through: %s", error)
        return 0


def _seconds_left(name: str) -> int:
    """Return when the count under `name` ends, at most a whole window; Django's own caches don't tell."""
    ttl = getattr(cache, "ttl", None)
    return (ttl(name) if ttl is not None else None) or WINDOW
