"""No address that staff can type into the admin is an error of the server, or a lever on the database."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import override_settings
from django.urls import reverse

from locking.models import Fence
from orders.models import Order
from tests.factories import OrderFactory

pytestmark = pytest.mark.django_db(transaction=True)

APPS = ("locking", "orders")
MODELS = [model for model in admin.site._registry if model._meta.app_label in APPS]
NUL, BROKEN, DAY = "%00", quote("((("), quote("2020-01-01 00:00:00+00:00")


def list_of(model):
    """Return the address of a model's list."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def queries_of(model):
    """Return queries that the database can't read, for each field and each way to ask."""
    fields = [field.name for field in model._meta.fields]
    yield from (f"{name}={NUL}" for name in [*fields, "q", "o", "p", "all", "delivery", "created_at__year"])
    yield from (f"{name}__{lookup}={BROKEN}" for name in fields for lookup in ("regex", "in", "gte", "date"))
    yield from (f"{name}={'9' * 30}" for name in [*fields, "p", "created_at__year", "at__year"])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label_lower)
def test_no_query_is_an_error(admin_client, model):
    """It is refused, or leads to the list; a row is there, so that each condition is evaluated."""
    OrderFactory.create()
    Fence.objects.create(name="a", token=1, owner="b")
    admin_client.raise_request_exception = False
    failed = [
        query
        for query in queries_of(model)
        if admin_client.get(f"{list_of(model)}?{query}").status_code >= 500
    ]
    assert failed == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label_lower)
@pytest.mark.parametrize("key", ["%00", "a%00b", "_00", "_5F00", "9" * 30])
def test_no_row_s_address_is_an_error(admin_client, model, key):
    """There is no such row: the list, or 404."""
    admin_client.raise_request_exception = False
    for page in ("change", "history", "delete"):
        assert admin_client.get(f"{list_of(model)}{key}/{page}/").status_code < 500


@pytest.mark.parametrize(
    "lookup", ["customer__regex", "customer__icontains", "items__product__sku__regex", "id__gt"]
)
@override_settings(DEBUG=False)
def test_a_condition_that_no_filter_offers_is_refused(admin_client, lookup):
    """A regular expression would be a lever on the database."""
    assert admin_client.get(f"{list_of(Order)}?{lookup}=a").status_code == 400


@pytest.mark.parametrize(
    "query", ["state__exact=placed", f"created_at__gte={DAY}", "created_at__year=2026", "q=a", "o=1"]
)
def test_what_the_page_itself_links_to_works(admin_client, query):
    """Filters, the hierarchy of dates, search and sorting."""
    assert admin_client.get(f"{list_of(Order)}?{query}").status_code == 200


def test_both_apps_are_looked_at():
    """A model that joins them is tried as well."""
    assert {model._meta.app_label for model in MODELS} == set(APPS)
    assert all(apps.is_installed(app) for app in APPS)
