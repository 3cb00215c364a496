"""`manage.py reconcile_stock`."""

from __future__ import annotations

from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from inventory import stock_store
from inventory.domain import Line, SoldOut
from inventory.models import StockClaim
from inventory.rows import subtract
from inventory.strategies.redis_gate import RedisGate
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)


def reconcile(*args: str) -> str:
    """Run the command and return what it says."""
    out = StringIO()
    call_command("reconcile_stock", *args, stdout=out, stderr=out)
    return out.getvalue()


def test_it_settles_every_ledger():
    """An entry in Redis and a claim in the database, both of dead buyers, are given back and counted."""
    product = ProductFactory.create(on_hand=5)
    RedisGate.gate.load([Line(product.sku, 1)])
    RedisGate.gate.shards[0].take(uuid4(), {product.sku: 2}, whole=True)
    subtract(product, 1)
    StockClaim.objects.create(sale=uuid4(), product=product, quantity=1)
    assert reconcile() == "", "they are young"
    said = reconcile("--older-than", "0")
    assert "redis_gate: 0 settled, 1 voided" in said
    assert "async_reserve: 0 settled, 1 voided" in said
    assert totals_of(product.sku).left == 5


def test_a_server_that_is_down_is_named_and_the_others_are_done(settings):
    """Without Redis the claims are given back all the same, and the exit status says that it isn't all."""
    product = ProductFactory.create(on_hand=5)
    subtract(product, 1)
    StockClaim.objects.create(sale=uuid4(), product=product, quantity=1)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"  # nothing listens there
    with pytest.raises(CommandError, match="redis_gate, segmented"):
        reconcile("--older-than", "0")
    assert totals_of(product.sku).left == 5


def test_an_age_below_zero_is_refused():
    """There is nothing that young."""
    with pytest.raises(CommandError, match="can't be below 0"):
        reconcile("--older-than", "-1")


def test_a_copy_without_a_ledger_is_reconciled_too():
    """What a dead buyer of `redis_script` took from Redis alone is for sale again."""
    sku = ProductFactory.create(on_hand=2).sku
    checkout([Line(sku, 1)], "redis_script")
    stock_store.client().decr(f"{{stock}}:{sku}")
    with pytest.raises(SoldOut):
        checkout([Line(sku, 1)], "redis_script")
    assert "redis_script: 0 settled, 0 voided, 1 rebuilt." in reconcile()
    checkout([Line(sku, 1)], "redis_script")
