"""What `import locking` loads, and how many functions a lock calls."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from django.test import override_settings

from benchmarks.calls import acounted, counted
from locking import get_lock
from tests import ROOT

START = """
import json, sys
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "locking"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1"}},
    LOCKING={"default": {"CACHE": "default"}},
)
"""

CLIENTS = ("redis", "hiredis", "django_redis", "kazoo", "requests", "celery", "prometheus_client")
"""Libraries that only their own module loads."""

ENGINES = ("redis", "memory", "database", "queue", "zookeeper", "etcd", "redlock")


def loaded_by(code: str) -> set[str]:
    """Return the modules that a new process has loaded after the code."""
    script = f"{START}{code}\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


@pytest.mark.parametrize(
    "code", ["import locking", "django.setup()\nimport locking"], ids=["import", "setup"]
)
def test_no_engine_is_loaded_before_its_first_use(code: str) -> None:
    """Neither the package nor the app loads an engine, its client, or Celery."""
    loaded = loaded_by(code)
    assert not loaded & {*CLIENTS, *(f"locking.backends.{name}" for name in ENGINES)}


def test_the_import_loads_no_optional_part() -> None:
    """The admin, inspection, metrics and commands are loaded by the app, or at their first use."""
    parts = (
        "admin",
        "checks",
        "contrib.",
        "inspection",
        "management",
        "models",
        "testing",
        "liveness",
    )
    loaded = loaded_by("import locking")
    assert "locking.core.lock" in loaded
    assert not [name for name in loaded if name.startswith(tuple(f"locking.{part}" for part in parts))]


def test_the_app_loads_no_list_and_no_search_for_deadlocks() -> None:
    """They are loaded with the first list and the first wait: a web worker may have neither."""
    loaded = loaded_by("django.setup()")
    assert "locking.inspection.heartbeat" in loaded
    assert not loaded & {"locking.inspection.held", "locking.inspection.deadlocks", "locking.contrib.celery"}


def test_one_server_loads_neither_cluster_nor_sentinels() -> None:
    """Redis' optional parts are loaded where an address names them."""
    loaded = loaded_by("django.setup()\nfrom locking import get_lock\nget_lock('a')")
    assert "locking.backends.redis.topology" in loaded
    assert not loaded & {"locking.backends.redis.cluster", "locking.backends.redis.sentinel"}


def test_an_engine_is_loaded_with_its_first_lock() -> None:
    """The rule above would be kept by a package that loads nothing ever."""
    assert "redis" in loaded_by("django.setup()\nfrom locking import get_lock\nget_lock('a')")


MOST_CALLS = 85
MOST_CALLS_IN_ASYNCIO = 200
"""It is 67 and 170 alone; what earlier tests hold or observe in the process adds a few."""


def test_a_pair_calls_few_functions(redis_database: Any) -> None:
    """One uncontended acquisition and release on Redis calls at most so many Python functions."""

    def pair(name: str) -> None:
        with get_lock(name, ttl=30.0):
            pass

    with override_settings(LOCKING={"default": {"CACHE": "default"}}):
        assert 20 < counted(pair) <= MOST_CALLS


async def test_a_pair_in_asyncio_calls_few_functions(redis_database: Any) -> None:
    """SET and EVALSHA by redis-py's asyncio client call more than 400, the event loop's own included."""

    async def pair(name: str) -> None:
        async with get_lock(name, ttl=30.0):
            pass

    with override_settings(LOCKING={"default": {"CACHE": "default"}}):
        assert 20 < await acounted(pair) <= MOST_CALLS_IN_ASYNCIO
