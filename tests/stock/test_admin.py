"""The admin: what it shows, what it lets change, and that a page's cost doesn't grow with the ledger."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from inventory import stock
from inventory.admin import ItemAdmin
from inventory.models import Count, Entry, Item, Level, Location, Movement, Reservation
from tests.stock.test_verbs import balances

pytestmark = pytest.mark.django_db


@pytest.fixture
def filled() -> Item:
    """An item with an entry of each kind that a clerk looks at."""
    stock.receive("mug", 10, cause="po-1")
    stock.sell({"mug": 2}, cause="o-1", actor="ann")
    stock.reserve({"mug": 1}, seconds=900, reference="cart-1")
    stock.count("mug", 9, cause="k-1")
    return Item.objects.get()


def page(client: Client, *names: object) -> str:
    """Return a page of the admin."""
    answer = client.get("/admin/inventory/" + "".join(f"{name}/" for name in names))
    assert answer.status_code == 200, answer
    return answer.content.decode()


@pytest.mark.parametrize(
    ("model", "shown"),
    [("item", "mug"), ("entry", "o-1"), ("reservation", "cart-1"), ("count", "mug @ default")],
)  # fmt: skip
def test_lists_and_pages_show_what_there_is(
    admin_client: Client, filled: Item, model: str, shown: str
) -> None:
    assert shown in page(admin_client, model)
    models = {"item": Item, "entry": Entry, "reservation": Reservation, "count": Count}
    pk = models[model].objects.order_by("pk").last().pk  # type: ignore[attr-defined]
    assert "mug" in page(admin_client, model, pk, "change") or model == "reservation"


def test_limits_can_be_changed_and_balances_cannot(admin_client: Client, filled: Item) -> None:
    (level,) = stock.levels("mug")
    url = f"/admin/inventory/item/{filled.pk}/change/"
    form = {
        "levels-TOTAL_FORMS": "1", "levels-INITIAL_FORMS": "1", "levels-0-id": level.pk,
        "levels-0-item": filled.pk, "levels-0-backorder_limit": "4", "levels-0-safety_stock": "2",
        "levels-0-available": "999",
    }  # fmt: skip
    answer = admin_client.post(url, form)
    assert answer.status_code == 302, answer.context["errors"]
    level = Level.objects.get()
    assert (level.backorder_limit, level.safety_stock, level.available) == (4, 2, 6)


@pytest.mark.parametrize(
    ("verb", "quantity", "after"), [("receive", 5, 11), ("count", 12, 9), ("adjust", -2, 4)]
)  # fmt: skip
def test_stock_is_changed_by_a_form(
    admin_client: Client, filled: Item, verb: str, quantity: int, after: int
) -> None:
    url = f"/admin/inventory/item/{filled.pk}/stock/"
    assert "Cause" in page(admin_client, "item", filled.pk, "stock")
    form = {"verb": verb, "quantity": quantity, "location": "default", "cause": "note-1"}
    for _ in range(2):  # sent twice, it counts once
        assert admin_client.post(url, form).status_code == 302
    assert balances(stock)[0] == after
    assert Entry.objects.get(cause="note-1").actor == "admin"
    assert f"/admin/inventory/item/{filled.pk}/stock/" in page(admin_client, "item", filled.pk, "change")


def test_a_change_that_cannot_be_is_said_in_the_form(admin_client: Client, filled: Item) -> None:
    url = f"/admin/inventory/item/{filled.pk}/stock/"
    form = {"verb": "count", "quantity": 1, "location": "default", "cause": "k-2"}
    assert b"promised" in admin_client.post(url, form).content
    assert b"location" in admin_client.post(url, {**form, "location": "nowhere"}).content


def test_who_may_not_change_items_cannot_change_stock(
    client: Client, django_user_model: Any, filled: Item
) -> None:
    client.force_login(django_user_model.objects.create_user("clerk", is_staff=True))
    form = {"verb": "receive", "quantity": 1, "location": "default", "cause": "x"}
    assert client.post(f"/admin/inventory/item/{filled.pk}/stock/", form).status_code == 403
    assert not Entry.objects.filter(cause="x").exists()


def test_the_ledger_cannot_be_written(admin_client: Client, filled: Item) -> None:
    entry = Entry.objects.get(cause="o-1")
    assert admin_client.get("/admin/inventory/entry/add/").status_code == 403
    assert admin_client.post(f"/admin/inventory/entry/{entry.pk}/change/", {}).status_code == 403
    assert admin_client.post(f"/admin/inventory/entry/{entry.pk}/delete/", {"post": "yes"}).status_code == 403


def test_an_items_page_links_to_the_history_of_each_level(admin_client: Client, filled: Item) -> None:
    stock.receive("pen", 4, cause="po-pen")
    (level,) = stock.levels("mug")
    here = f"/admin/inventory/movement/?level={level.pk}"
    assert here in page(admin_client, "item", filled.pk, "change")
    shown = admin_client.get(here).content.decode()
    assert "o-1" in shown
    assert "ann" in shown
    assert "mug @ default" in shown
    assert "po-pen" not in shown
    movement = Movement.objects.first()
    assert movement is not None
    assert admin_client.post(f"/admin/inventory/movement/{movement.pk}/delete/").status_code == 403


LISTS = (
    *("item/", "entry/", "reservation/", "count/", "location/", "movement/", "movement/?level={level}"),
    *("item/?q=mu", "entry/?q=o-1", "reservation/?q=cart-1", "location/?q=def"),
)


def test_a_list_costs_the_same_however_long_it_is(admin_client: Client, filled: Item) -> None:
    level = stock.levels("mug")[0].pk

    def queries(url: str) -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(f"/admin/inventory/{url.format(level=level)}")
        return [each["sql"] for each in captured.captured_queries]

    before = {url: len(queries(url)) for url in LISTS}
    many = [f"mug-{no:03}" for no in range(120)]
    stock.receive(dict.fromkeys(many, 1), cause="po-many")
    for no in range(120):
        stock.adjust("mug", 1, cause=f"found-{no}")
    Location.objects.bulk_create(Location(code=f"default-{no}") for no in range(120))
    for sku in many[:110]:
        stock.count(sku, 2, cause=f"k-{sku}")
        stock.reserve({sku: 1}, seconds=900, reference="cart-1")
    for url in LISTS:
        after = queries(url)
        assert len(after) == before[url], url
        ours = [sql for sql in after if 'FROM "inventory_' in sql]
        assert any("COUNT" in sql for sql in ours), url
        for sql in ours:
            assert "LIMIT" in sql or "entry/?q" in url, sql  # one cause has one entry
            assert "UPPER" not in sql, f"no index serves this: {sql}"
            assert "LIKE '%" not in sql, f"no index serves this: {sql}"


def test_another_projects_admin_takes_a_page_over() -> None:
    class Own(ItemAdmin):
        list_display = ("sku", "pk")

    site = admin.AdminSite()
    site.register(Item, Own)
    assert site.is_registered(Item)


def test_a_project_without_the_admin_works() -> None:
    code = (
        "import django, sys; from django.conf import settings; "
        "settings.configure(INSTALLED_APPS=['inventory'], DATABASES={'default': "
        "{'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:', "
        "'OPTIONS': {'transaction_mode': 'IMMEDIATE'}}}, USE_TZ=True); django.setup(); "
        "from django.core.management import call_command; call_command('migrate', verbosity=0); "
        "call_command('check', fail_level='WARNING', stdout=sys.stderr); "
        "from inventory import stock; stock.receive('mug', 2, cause='po-1'); "
        "stock.sell({'mug': 1}, cause='o-1'); "
        "print(stock.available('mug'), 'django.contrib.admin' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("1 False\n", 0), done.stderr


def test_every_text_has_a_chinese_one(admin_client: Client, filled: Item) -> None:
    from django.utils import translation

    with translation.override("zh-hans"):
        assert str(Entry.Kind.SELL.label) == "售出"
        assert str(ItemAdmin.search_help_text) == "SKU 的开头"
