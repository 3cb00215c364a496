from datetime import timedelta
from decimal import Decimal

import pytest

from inventory import SoldOut, stock
from orders.after_sale import fulfillment, lifecycle
from orders.models import *
from orders.selling import reservations
from orders.selling.checkout import checkout_reserved, place
from orders.selling.refusals import *
from orders.selling.writing import ClientKey
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)

@pytest.mark.parametrize("name", ["conditional_update","write_first","combined","redis_gate","redis_lock","fenced_lock","database_lock"])
def test_sell(name):
    p = ProductFactory.create(sku="mug", on_hand=3)
    r = place([("mug", 2)], name, customer="ann", key=ClientKey("", "k", "f"))
    print(r.body)
    assert r.body == IdempotencyKey.objects.get().body
    from orders.selectors import order_data
    assert order_data(r.order) == r.body
    with pytest.raises(SoldOut): place([("mug", 2)], name)
    with pytest.raises(RepeatedKey): place([("mug", 1)], name, key=ClientKey("", "k", "f"))
    assert stock.available("mug") == 1
    lifecycle.pay(r.id)
    assert fulfillment.ship(r.id, [("mug", 1)], "p1").state == "partly_shipped"
    assert fulfillment.ship(r.id, [("mug", 1)], "p1").state == "partly_shipped"
    assert fulfillment.take_back(r.id, [("mug", 1)], "r1").state == "partly_shipped"
    assert fulfillment.cancel_units(r.id, None, "c1", lost=True).state == "returned"
    assert stock.available("mug") == 2
    assert CustomerPurchase.objects.get().units == 0

def test_reserve():
    p = ProductFactory.create(sku="mug", on_hand=3, customer_limit=2)
    with pytest.raises(LimitReached): reservations.reserve([("mug", 1)], timedelta(seconds=60))
    made = reservations.reserve([("mug", 2)], timedelta(seconds=60), "ann")
    with pytest.raises(LimitReached): place([("mug", 1)], customer="ann")
    with pytest.raises(LimitReached): reservations.reserve([("mug", 1)], timedelta(seconds=60), "ann")
    Product.objects.update(price=99)
    with pytest.raises(PriceChanged) as e: checkout_reserved(made.id)
    print(e.value)
    assert reservations.find(made.id).state == "live"
    r = checkout_reserved(made.id, expected_total=Decimal("198"))
    lifecycle.cancel(r.id)
    assert stock.available("mug") == 3
