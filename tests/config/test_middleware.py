"""JSON pays for no session, user or language; pages have them all; both have the security headers."""

import pytest
from django.utils import translation

from tests.factories import ProductFactory

SECURITY = {"X-Content-Type-Options", "Referrer-Policy", "Cross-Origin-Opener-Policy", "X-Frame-Options"}


@pytest.mark.django_db
def test_an_answer_of_the_api_has_no_part_of_a_page(client):
    """No cookie is set or read, no user looked up, no language chosen."""
    ProductFactory.create()
    reply = client.get("/products/", headers={"Accept-Language": "zh-hans"})
    assert reply.status_code == 200
    assert int(reply.headers["Content-Length"]) == len(reply.content)
    assert not reply.cookies
    assert "Vary" not in reply.headers
    assert "Content-Language" not in reply.headers
    assert not hasattr(reply.wsgi_request, "session")
    assert not hasattr(reply.wsgi_request, "user")
    assert set(reply.headers) >= SECURITY


@pytest.mark.django_db
def test_a_page_has_everything(client):
    """Language, session, user and messages are there."""
    reply = client.get("/shop/", headers={"Accept-Language": "zh-hans"})
    assert reply.headers["Content-Language"] == "zh-hans"
    assert reply.wsgi_request.user.is_anonymous
    assert hasattr(reply.wsgi_request, "_messages")
    assert set(reply.headers) >= SECURITY


@pytest.mark.django_db
def test_a_page_still_demands_its_csrf_token():
    """The wrapped middleware looks at the views, too."""
    from django.test import Client

    assert Client(enforce_csrf_checks=True).post("/i18n/setlang/", {"language": "en"}).status_code == 403


@pytest.mark.django_db
def test_the_last_pages_language_does_not_reach_the_api(client):
    """A thread serves a Chinese page and then JSON: the latter is in the default language."""
    client.get("/shop/", headers={"Accept-Language": "zh-hans"})
    client.get("/products/")
    assert translation.get_language() == "en"


async def test_the_stacks_are_there_under_asgi(async_client):
    """Both answer under ASGI as well."""
    assert (await async_client.get("/problems/")).headers["Content-Language"] == "en"
    reply = await async_client.get("/openapi.json")
    assert "Content-Language" not in reply.headers
    assert int(reply.headers["Content-Length"]) == len(reply.content)


@pytest.mark.django_db
def test_a_checkout_without_the_slash_is_answered(client):
    """A redirect would lose the body, so both addresses are the checkout."""
    ProductFactory.create(sku="mug", on_hand=1)
    order = {"lines": [{"sku": "mug", "quantity": 1}]}
    assert client.post("/checkout", order, content_type="application/json").status_code == 201
