"""The shop's settings on a Redis Cluster: locks, what is sold out and rate are asked of all its masters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from urllib.parse import quote

import pytest
from django.db import connections

from tests import ROOT
from tests.locking.backends.redis.topologies.servers import Cluster, servers

pytestmark = pytest.mark.django_db(transaction=True)

STRATEGIES = ["redis_lock", "fenced_lock", "redis_gate"]

SHOP = """
import json, sys
import django
django.setup()
from django.test import Client
from orders.catalog.products import create_product
from orders.audit import audit
sold = {}
for number, strategy in enumerate(sys.argv[1:]):
    sku = f"mug-{number}"
    create_product(sku, on_hand=2)
    body = {"lines": [{"sku": sku, "quantity": 1}], "strategy": strategy}
    answers = [Client().post("/checkout/", body, content_type="application/json") for _ in range(3)]
    sold[strategy] = [answer.status_code for answer in answers]
print(json.dumps([sold, [str(difference) for difference in audit()]]))
"""


def database_url() -> str:
    """Return where the test's database is: the tests' settings would choose a database of Redis as well."""
    known = connections["default"].settings_dict
    user = f"{known['USER']}:{known['PASSWORD']}" if known.get("PASSWORD") else known["USER"]
    port = f":{known['PORT']}" if known.get("PORT") else ""
    return f"postgres://{user}@{quote(known['HOST'], safe='')}{port}/{known['NAME']}"


def test_every_strategy_that_asks_redis_sells_on_a_cluster(tmp_path):
    """Two of three buyers are served by each, whichever master has its keys, and the audit finds nothing."""
    with servers(tmp_path) as start:
        environment = {"REDIS_URL": Cluster(start).masters[0].url, "REDIS_CLUSTER": "true"}
        environment |= {"DJANGO_SETTINGS_MODULE": "config.settings", "CHECKOUT_RATE": "1000"}
        environment |= {"DATABASE_URL": database_url()}
        done = subprocess.run(
            [sys.executable, "-c", SHOP, *STRATEGIES],
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert not done.returncode, done.stderr
    sold, differences = json.loads(done.stdout.splitlines()[-1])
    assert sold == {name: [201, 201, 409] for name in STRATEGIES}, done.stderr
    assert differences == []
    assert "couldn't be counted" not in done.stderr  # the rate
