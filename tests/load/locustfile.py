"""Locust's users of the shop: `make loadtest UI=1` opens its web page, `make loadtest` runs it headless.

LOAD_SKUS       comma-separated; default: every product that the shop lists
LOAD_JOURNAL    a file for the journal that the auditor reads; default: none is written
"""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

from locust import FastHttpUser, constant_throughput, task

from tests.load.journal import Journal
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
            kind = self.heard(key, response)
            if kind == "failed":
                response.failure(f"{response.status_code} {response.text or response.error}"[:200])
            else:
                response.success()

    def heard(self, key: str, response: object) -> str:
        """Write down the answer; return `failed` unless it is an order, a refusal or a request to come again."""
        status = response.status_code  # type: ignore[attr-defined]  # locust has no types
        data = response.json() if status in (200, 201, 409, 503) else {}  # type: ignore[attr-defined]
        kind = data.get("type", "")
        facts = None
        if status in (200, 201):
            facts = (201, {"order": data["id"]})
        elif status == 409 and "sold-out" in kind:
            facts = (409, {"short": [shortage["sku"] for shortage in data["shortages"]]})
        elif status == 503 and "unknown" not in kind:
            facts = (503, {})
        if facts and JOURNAL:
            JOURNAL.told(key, facts[0], **facts[1])
        return "heard" if facts else "failed"
