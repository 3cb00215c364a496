"""Locust's users of the shop: `make loadtest UI=1` opens its web page, `make loadtest` runs it headless.

LOAD_SKUS       comma-separated; default: every product that the shop lists
LOAD_JOURNAL    a file for the journal that the auditor reads; default: none is written
"""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, task

from tests.load.journal import Journal, verdict
from tests.load.schedule import as_lines

JOURNAL = Journal(Path(os.environ["LOAD_JOURNAL"])) if os.environ.get("LOAD_JOURNAL") else None


class Shopper(FastHttpUser):
    """Someone who looks at the products now and then, and buys."""

    wait_time = constant_throughput(5)
    network_timeout = connection_timeout = 20.0
    default_headers = {"Accept": "application/json"}  # noqa: RUF012  locust's own way to say so

    def on_start(self) -> None:
        """Learn what there is to buy."""
        self.skus = [sku for sku in os.environ.get("LOAD_SKUS", "").split(",") if sku] or self.listed()

    def listed(self) -> list[str]:
        """Return the SKUs of the first page."""
        return [product["sku"] for product in self.client.get("/products/").json()["products"]]

    @task(1)
    def look(self) -> None:
        """Read the first page of products."""
        self.client.get("/products/")

    @task(9)
    def buy(self) -> None:
        """Order one or two products; being refused is an answer, not a failure."""
        wanted = random.sample(self.skus, min(len(self.skus), random.choice((1, 1, 2))))
        basket = {sku: random.choice((1, 1, 2)) for sku in sorted(wanted)}
        key = secrets.token_hex(8)
        if JOURNAL:
            JOURNAL.asked(key, basket)
        with self.client.post(
            "/checkout/",
            json={"lines": as_lines(basket)},
            headers={"Idempotency-Key": key},
            catch_response=True,
        ) as response:
            if self.heard(key, response):
                response.success()
            else:
                response.failure(f"{response.status_code} {response.text or response.error}"[:200])

    def heard(self, key: str, response: Any) -> bool:
        """Write down the answer; return whether it is an order, a refusal or a request to come again."""
        data = response.json() if response.status_code in (200, 201, 409, 503) else {}
        answered = verdict(response.status_code, data)
        if answered and JOURNAL:
            JOURNAL.answered(key, **answered)
        return answered is not None
