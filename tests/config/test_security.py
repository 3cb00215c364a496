"""Headers on every answer, and a demo's password that opens no deployment."""

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.test import Client

from config.middleware import DATA_POLICY, PAGE_POLICY
from config.serve import greeting


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("address", "policy"),
    [
        ("/", PAGE_POLICY),
        ("/admin/login/", PAGE_POLICY),
        ("/no-such-page/", PAGE_POLICY),
        ("/products/", DATA_POLICY),
        ("/livez", DATA_POLICY),
    ],
)
def test_every_answer_has_a_content_security_policy(client, settings, address, policy):
    """Pages, the admin, JSON and what isn't there."""
    settings.DEBUG = False
    assert client.get(address).headers["Content-Security-Policy"] == policy


@pytest.mark.django_db
def test_refusals_look_like_the_shop(client, settings):
    """404 and a missing CSRF token come as pages with the shop's navigation."""
    settings.DEBUG = False
    missing = client.get("/no-such-page/")
    assert (missing.status_code, b"There is no page at this address" in missing.content) == (404, True)
    forged = Client(enforce_csrf_checks=True).post("/i18n/setlang/", {"language": "en"})
    assert (forged.status_code, b"The form has expired" in forged.content) == (403, True)


@pytest.mark.django_db
@pytest.mark.parametrize("debug", [True, False])
def test_the_demo_password_opens_nothing_outside_debug(settings, debug):
    """A database that was seeded as a demo and then deployed lets nobody in by it; other passwords work."""
    users = get_user_model().objects
    users.create_superuser("admin", password="admin")
    users.create_user("ada", password="other")
    settings.DEBUG = debug
    assert (authenticate(username="admin", password="admin") is not None) is debug
    assert authenticate(username="ada", password="other") is not None


@pytest.mark.parametrize("debug", [True, False])
def test_the_greeting_names_the_password_under_debug_only(debug):
    """Nobody is told a login that a deployment refuses."""
    assert ("password" in greeting(8000, debug=debug)) is debug
