"""System checks: who may do what over HTTP must be decided before the shop is open."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import check_password
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.checks.security.base import W004, W008
from django.core.checks.security.csrf import W016
from django.db import DatabaseError
from django.utils.module_loading import import_string

from orders.http.callers import RIGHTS
from orders.http.rate_limit import trusted_proxies
from orders.selling.strategies import names

SHORTEST_SECRET = 16
LONGEST_MEMORY = 60
HTTPS_SETTINGS = {"SECURE_HSTS_SECONDS": W004, "SECURE_SSL_REDIRECT": W008, "CSRF_COOKIE_SECURE": W016}


@register
def check_caller(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse a CALLER that can't be imported, and rights of API keys that nothing asks for."""
    try:
        import_string(settings.CALLER)
    except ImportError as error:
        hint = "Name a function of the request that returns an orders.http.callers.Caller."
        return [Error(f"CALLER is {settings.CALLER!r}: {error}", hint=hint, id="orders.E001")]
    unknown = {right for _, rights in settings.API_KEYS.values() for right in rights} - RIGHTS
    if unknown:
        hint = f"Choose of {', '.join(sorted(RIGHTS))}."
        return [Error(f"API_KEYS names rights {sorted(unknown)}: unknown.", hint=hint, id="orders.E002")]
    return []


@register
def check_trusted_proxies(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse networks that can't be read."""
    try:
        trusted_proxies(tuple(settings.TRUSTED_PROXIES))
    except ValueError as error:
        hint = "Write each as an address or as a network, e.g. 10.0.0.0/8."
        return [Error(f"TRUSTED_PROXIES: {error}", hint=hint, id="orders.E004")]
    return []


@register(deploy=True)
def check_open_demo(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Warn of a deployment in which any client may mark orders as paid."""
    if not settings.OPEN_DEMO or settings.CALLER != "orders.http.callers.anonymous":
        return []
    what = (
        "OPEN_DEMO is on: anyone who knows an order's id may mark it as paid, and anyone may list all orders."
    )
    return [Warning(what, hint="Set OPEN_DEMO to false, or name your own CALLER.", id="orders.W001")]


@register(Tags.security, deploy=True)
def check_demo_login(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Warn of a database that was seeded as a demo: its administrator's password is public."""
    hint = "Change it with manage.py changepassword admin, or delete that user."
    with suppress(DatabaseError):
        hashes = get_user_model().objects.filter(username="admin").values_list("password", flat=True)
        if any(check_password("admin", each) for each in hashes):
            return [Warning("The user admin has the demo's password.", hint=hint, id="orders.W002")]
    return []


@register(Tags.security, deploy=True)
def check_https(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Report Django's warnings about https.

    Django's own checks report them only where MIDDLEWARE names Django's middleware; `config.middleware`
    stands for it here.
    """
    return [warning for name, warning in HTTPS_SETTINGS.items() if not getattr(settings, name)]


@register
def check_webhook_secrets(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse secrets that could be guessed; the message doesn't show them."""
    short = [
        n for n, secret in enumerate(settings.PAYMENT_WEBHOOK_SECRETS, 1) if len(secret) < SHORTEST_SECRET
    ]
    return [
        Error(
            f"secret {number} of PAYMENT_WEBHOOK_SECRETS has fewer than {SHORTEST_SECRET} characters.",
            hint="Copy the provider's secret whole, or leave the list empty.",
            id="orders.E003",
        )
        for number in short
    ]


@register
def check_selling(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse a CHECKOUT_STRATEGY that isn't set up, and a SOLD_OUT_MEMORY that would refuse for long."""
    found: list[CheckMessage] = []
    if settings.CHECKOUT_STRATEGY not in names():
        hint = f"Choose of {', '.join(names())}; others need a lock server that the environment names."
        what = f"CHECKOUT_STRATEGY is {settings.CHECKOUT_STRATEGY!r}, which INVENTORY doesn't have."
        found.append(Error(what, hint=hint, id="orders.E005"))
    if not 0 <= settings.SOLD_OUT_MEMORY <= LONGEST_MEMORY:
        hint = "Use 0.25, or 0 to have every buyer ask the database."
        what = f"SOLD_OUT_MEMORY is {settings.SOLD_OUT_MEMORY}: seconds from 0 to {LONGEST_MEMORY}."
        found.append(Error(what, hint=hint, id="orders.E006"))
    return found
