"""`seed_demo` and `reload_stock`."""

from __future__ import annotations

from io import StringIO

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import CommandError, call_command

from inventory.domain import Line, SoldOut
from inventory.models import Product
from inventory.stock_store import client
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.totals import totals_of


def run(*args: str) -> str:
    """Run a command and return what it says."""
    out = StringIO()
    call_command(*args, stdout=out)
    return out.getvalue()


@pytest.mark.django_db(transaction=True)
def test_seeding_twice_changes_nothing(settings):
    """The second run creates nothing and leaves what was sold in between as it is."""
    settings.DEBUG = True
    assert "5 products created" in run("seed_demo")
    checkout([Line("mug", 3)], "conditional_update")
    assert "0 products created, 5 were there" in run("seed_demo")
    assert totals_of("mug").left == 97
    assert all(totals_of(sku).balanced for sku in Product.objects.values_list("sku", flat=True))
    assert authenticate(username="admin", password="admin")


@pytest.mark.django_db
def test_the_demo_login_exists_under_debug_only(settings):
    """Outside DEBUG nobody gets a password that everybody knows."""
    settings.DEBUG = False
    run("seed_demo")
    assert not get_user_model().objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_changed_admin_keeps_its_password(settings):
    """Who changed the demo's password has it after the next seeding, too."""
    settings.DEBUG = True
    run("seed_demo")
    admin = get_user_model().objects.get(username="admin")
    admin.set_password("better")
    admin.save()
    run("seed_demo")
    assert authenticate(username="admin", password="better")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", ["redis_script", "segmented"])
def test_reloading_brings_back_units_that_redis_has_lost(strategy):
    """Units that Redis holds back and no order has can be sold after the reload."""
    sku = ProductFactory.create(on_hand=2).sku
    checkout([Line(sku, 1)], strategy)
    for key in client().scan_iter(f"*{sku}*"):
        if client().type(key) == "hash":
            client().hset(key, "units", 0)
        else:
            client().set(key, 0)
    with pytest.raises(SoldOut):
        checkout([Line(sku, 1)], strategy)
    assert "1 products rebuilt" in run("reload_stock", strategy, sku)
    checkout([Line(sku, 1)], strategy)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", ["redis_script", "redis_gate", "segmented"])
def test_reloading_a_shop_with_two_currencies_and_a_product_that_is_not_for_sale(strategy):
    """All products are no cart, which could not have these."""
    mug = ProductFactory.create(on_hand=2)
    ProductFactory.create(price=300, currency="JPY")
    Product.objects.filter(pk=ProductFactory.create().pk).update(active=False)
    assert "3 products rebuilt" in run("reload_stock", strategy)
    checkout([Line(mug.sku, 2)], strategy)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("args", "reason"),
    [(("nonsense",), "unknown strategy"), (("segmented", "missing"), "unknown product: missing")],
)
def test_reloading_what_there_is_not(args, reason):
    """A misspelt strategy or SKU is named."""
    with pytest.raises(CommandError, match=reason):
        run("reload_stock", *args)
