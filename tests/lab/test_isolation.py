"""The lab lives on tables of its own: no statement of a sale or of clearing up names another app's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from orders.lab.race import lab_products
from orders.lab.race.audit import look, read_totals
from orders.lab.strategies import STRATEGIES
from tests.lab.products import make, sell

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def foreign():
    """The tables of other apps that statements of the test have named; `locking` may write its fences."""
    tables = {model._meta.db_table for model in apps.get_models() if model._meta.app_label != "lab"}
    tables = {table for table in tables if not table.startswith("locking_")}
    named: set[str] = set()

    def note(execute: Callable[..., Any], sql: Any, *rest: Any) -> Any:
        named.update(tables.intersection(re.findall(r"\w+", str(sql))))
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield named


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sale_names_no_table_of_another_app(foreign, strategy):
    """Every strategy sells two products, the first one twice, on tables of the lab alone."""
    pen, mug = make(3).sku, make(3).sku
    for _ in range(2):
        sell(strategy, {pen: 1, mug: 1})
    STRATEGIES[strategy]().reconcile(older_than=0)
    assert foreign == set()


def test_a_race_names_no_table_of_another_app(foreign):
    """Stocking up, looking, adding up, sweeping and clearing don't, either."""
    with lab_products.race_in_progress() as race:
        product, other = lab_products.stock_up_cart(race, 1, "ordered_locks", 2)
        sell("ordered_locks", {product.sku: 1, other.sku: 1})
        look(product.sku), read_totals(product.sku), lab_products.sweep()
    assert foreign == set()
