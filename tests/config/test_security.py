"""Headers on every answer, and a demo's password that opens no deployment."""

import os
import subprocess
import sys

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.test import Client

from config.middleware import DATA_POLICY, PAGE_POLICY
from config.serve import greeting
from tests import ROOT

SEND_A_FORM = """
import sys
import django
django.setup()
from django.conf import settings
from django.test import Client

settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
client = Client(enforce_csrf_checks=True, raise_request_exception=False)
client.cookies["csrftoken"] = token = "t" * 32
headers = {"host": "shop.example", "x-csrftoken": token, "x-forwarded-proto": "https"}
for origin in sys.argv[1:]:
    answer = client.post("/i18n/setlang/", {"language": "en"}, headers={**headers, "origin": origin})
    print(answer.status_code, answer.headers.get("Location"))
"""


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
    """A database that was seeded as a demo and then deployed refuses its login; other passwords work."""
    users = get_user_model().objects
    users.create_superuser("admin", password="admin")
    users.create_user("ada", password="other")
    settings.DEBUG = debug
    assert (authenticate(username="admin", password="admin") is not None) is debug
    assert authenticate(username="ada", password="other") is not None


@pytest.mark.parametrize("debug", [True, False])
def test_the_greeting_names_the_password_under_debug_only(debug):
    """A login that a deployment refuses is never shown."""
    assert ("password" in greeting(8000, debug=debug)) is debug


@pytest.mark.parametrize(
    ("variables", "origin"),
    [
        ({"SECURE_PROXY_SSL_HEADER": "X-Forwarded-Proto"}, "https://shop.example"),
        ({"CSRF_TRUSTED_ORIGINS": "https://www.shop.example"}, "https://www.shop.example"),
    ],
)
def test_forms_come_through_a_proxy_that_ends_https(variables, origin):
    """The proxy says that a page came by https; without that every login is refused as forged."""
    redirected = {"SECURE_SSL_REDIRECT": "true"} if "SECURE_PROXY_SSL_HEADER" in variables else {}
    environment = os.environ | redirected | variables
    environment |= {"DEBUG": "false", "SECRET_KEY": "s" * 50, "ALLOWED_HOSTS": "shop.example"}
    environment |= {"DJANGO_SETTINGS_MODULE": "config.settings", "DATABASE_URL": "sqlite://:memory:"}
    command = [sys.executable, "-c", SEND_A_FORM, origin, "https://evil.example"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["302 /", "403 None"]
