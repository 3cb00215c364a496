import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from django.db.models import Sum

from inventory.models import Product
from inventory.strategies import STRATEGIES
from orders.models import Order, OrderItem
from tests.factories import ProductFactory

SOUND = sorted(
    s.name for s in STRATEGIES.values() if s.sound and s.sound_across_processes and not s.lock_setting
)
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
@pytest.mark.parametrize("strategy", SOUND)
def test_a_rush_sells_exactly_what_is_there(server, strategy):
    """Thirty buyers before two server processes: ten orders, twenty refusals, and the rows agree."""
    product = ProductFactory.create(sku="mug", on_hand=STOCK)
    with ThreadPoolExecutor(BUYERS) as buyers:
        answers = Counter(buyers.map(lambda _: buy(server, strategy), range(BUYERS)))
    assert answers == {201: STOCK, 409: BUYERS - STOCK}
    assert Product.objects.get().on_hand == 0
    assert Order.objects.count() == STOCK
    assert OrderItem.objects.aggregate(sold=Sum("quantity"))["sold"] == STOCK
    assert sum(product.movements.values_list("quantity", flat=True)) == 0
