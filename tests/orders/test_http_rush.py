import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from django.db.models import Sum

from orders.audit import audit
from orders.models import Order, OrderItem
from orders.selling.strategies import names
from tests.factories import ProductFactory
from tests.orders.shelf import left

BUYERS, STOCK = 30, 10


def buy(server: str, strategy: str) -> int:
    """Order one mug and return the status of the answer."""
    body = {"lines": [{"sku": "mug", "quantity": 1}], "strategy": strategy}
    request = Request(f"{server}/checkout/", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except HTTPError as refused:
        with refused:
            return refused.code


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", names())
def test_a_rush_sells_exactly_what_is_there(server, strategy):
    """Thirty buyers before two server processes: ten orders, twenty refusals, and the rows agree."""
    ProductFactory.create(sku="mug", on_hand=STOCK)
    with ThreadPoolExecutor(BUYERS) as buyers:
        answers = Counter(buyers.map(lambda _: buy(server, strategy), range(BUYERS)))
    assert answers == {201: STOCK, 409: BUYERS - STOCK}
    assert left() == 0
    assert Order.objects.count() == STOCK
    assert OrderItem.objects.aggregate(sold=Sum("quantity"))["sold"] == STOCK
    assert audit() == []
