"""The checks of `manage.py check`: a shop that is open by mistake is reported."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks

from orders.checks import (
    check_caller,
    check_demo_login,
    check_https,
    check_open_demo,
    check_selling,
    check_trusted_proxies,
    check_webhook_secrets,
)


def ids(messages) -> list[str]:
    """Return the ids of what a check found."""
    return [message.id for message in messages]


def test_the_demo_as_shipped_has_nothing_to_report():
    """No check of orders finds anything in the settings of the tests."""
    assert [found for found in run_checks() if (found.id or "").startswith("orders.")] == []


@pytest.mark.parametrize("path", ["", "orders", "orders.http.callers.missing", "missing.module.hook"])
def test_a_caller_that_cannot_be_imported_is_refused(settings, path):
    """The value is named, and what it must be."""
    settings.CALLER = path
    (found,) = check_caller(None)
    assert found.id == "orders.E001"
    assert repr(path) in found.msg


def test_a_right_that_nothing_asks_for_is_refused(settings):
    """A misspelled right would deny without a word."""
    settings.API_KEYS = {"a" * 64: ("shop", ("pai",))}
    (found,) = check_caller(None)
    assert (found.id, "['pai']" in found.msg) == ("orders.E002", True)


def test_an_open_demo_is_warned_of_at_deployment(settings):
    """Any client may pay: only where callers are unknown."""
    settings.OPEN_DEMO = True
    assert ids(check_open_demo(None)) == ["orders.W001"]
    settings.CALLER = "orders.http.callers.by_api_key"
    assert ids(check_open_demo(None)) == []


def test_a_secret_that_could_be_guessed_is_refused(settings):
    """By its number; the message doesn't repeat it."""
    settings.PAYMENT_WEBHOOK_SECRETS = ["whsec_long_enough_1", "guess-me"]
    (found,) = check_webhook_secrets(None)
    assert found.id == "orders.E003"
    assert "secret 2" in found.msg
    assert "guess-me" not in found.msg


@pytest.mark.django_db
@pytest.mark.parametrize(("password", "found"), [("admin", ["orders.W002"]), ("another one", [])])
def test_a_deployment_is_warned_of_the_demos_login(django_user_model, password, found):
    """The check names it as long as the password is the public one."""
    assert ids(check_demo_login(None)) == []
    django_user_model.objects.create_superuser("admin", password=password)
    assert ids(check_demo_login(None)) == found


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("setting", "on", "found"),
    [
        ("SECURE_HSTS_SECONDS", 31_536_000, "security.W004"),
        ("SECURE_SSL_REDIRECT", True, "security.W008"),
        ("CSRF_COOKIE_SECURE", True, "security.W016"),
    ],
)
def test_a_deployment_is_warned_what_https_lacks(settings, setting, on, found):
    """`check --deploy` reports each warning of Django once while its setting is off, not afterwards."""
    setattr(settings, setting, type(on)(0))
    assert ids(run_checks(include_deployment_checks=True)).count(found) == 1
    setattr(settings, setting, on)
    assert found not in ids(check_https(None))


def test_proxies_that_cannot_be_read(settings):
    """The value is named, with the way to write one."""
    settings.TRUSTED_PROXIES = ["10.0.0.0/8", "proxy.example"]
    (found,) = check_trusted_proxies(None)
    assert found.id == "orders.E004"
    assert "proxy.example" in found.msg


@pytest.mark.parametrize(
    ("setting", "value", "check"),
    [("CHECKOUT_STRATEGY", "redis_lok", "orders.E005"), ("SOLD_OUT_MEMORY", 61, "orders.E006")],
)
def test_how_to_sell_is_checked_at_the_start(settings, setting, value, check):
    """The value, and what can be chosen."""
    setattr(settings, setting, value)
    (found,) = check_selling(None)
    assert (found.id, str(value) in found.msg) == (check, True)
