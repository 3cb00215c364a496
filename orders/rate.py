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


def limit_rate(request: HttpRequest, customer: str) -> None:
    """Count a request, and refuse one too many.

    Args:
        request: its address counts where nobody says who it is.
        customer: who asks.

    Raises:
        Problem: there were `settings.CHECKOUT_RATE` in this minute already.
    """
    if not settings.CHECKOUT_RATE:
        return
    who = f"customer:{quote(customer, safe='')}" if customer else f"address:{request.META['REMOTE_ADDR']}"
    name = f"rate:{who}"
    if _counted(name) > settings.CHECKOUT_RATE:
        raise Problem(
            TOO_MANY,
            f"More than {settings.CHECKOUT_RATE} requests in a minute; nothing was done.",
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
