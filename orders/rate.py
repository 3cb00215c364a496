"""How often one buyer may ask for stock: `CHECKOUT_RATE` requests a minute, counted in Django's cache."""

from __future__ import annotations

import logging
import time
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
    window, passed = divmod(time.time(), WINDOW)
    if _counted(f"rate:{who}:{window:.0f}") > settings.CHECKOUT_RATE:
        raise Problem(
            TOO_MANY,
            f"More than {settings.CHECKOUT_RATE} requests in a minute; nothing was done.",
            headers={"Retry-After": str(WINDOW - int(passed))},
        )


def _counted(name: str) -> int:
    """Count one more under `name`; 0 when the cache can't: a shop without its counter goes on selling."""
    try:
        cache.add(name, 0, timeout=WINDOW)
        return int(cache.incr(name))
    except Exception as error:  # each cache has errors of its own
        logger.warning("a request couldn't be counted, and was let through: %s", error)
        return 0
