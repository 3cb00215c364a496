"""The demo's settings, with what tests change."""

import os

from config.redis_urls import as_rate_storage, with_database
from config.settings import *  # noqa: F403
from config.settings import CACHES, DATABASE, REDIS_URL

# Each test process has a Redis database of its own, counted down from the 16th, away from the demo's.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
REDIS_URL = with_database(REDIS_URL, 15 - WORKER % 15)
CACHES["default"]["LOCATION"] = REDIS_URL
CHECKOUT_RATE_STORAGE = as_rate_storage(REDIS_URL)

# A process that a test starts works on the test's database; `tests/conftest.py` leaves its name here.
DATABASE["NAME"] = os.environ.get("HOLDFAST_TEST_DATABASE", DATABASE["NAME"])

# Commits need not reach the disk before they are answered: nothing but a crash of the server could tell the
# difference, and tests that crash a server start their own. Order, locks and visibility stay as they are.
DATABASE.setdefault("OPTIONS", {})["options"] = "-c synchronous_commit=off"

PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.MD5PasswordHasher"
]  # quick; nothing here is worth breaking into
CELERY_BROKER_URL = "memory://"
