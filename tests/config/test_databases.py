"""Which databases the environment names, and what is asked of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT

PRIMARY = "postgres://shop@pooler:6432/shop"
SHOW = """
import json
from config import settings
print(json.dumps([
    {alias: [entry["HOST"], entry["CONN_HEALTH_CHECKS"]] for alias, entry in settings.DATABASES.items()},
    settings.PRODUCTS_DATABASE, settings.LOCKING["default"].get("LOCATION"),
]))
"""


def shown(**variables: str) -> list[object]:
    """Return what the settings make of an environment; no server is asked."""
    environment = os.environ | {"DATABASE_URL": PRIMARY, "REDIS_URL": "redis://redis:6379"} | variables
    done = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [{"default": ["pooler", True]}, "default", None]),
        (
            {"DATABASE_REPLICA_URL": "postgres://shop@replica/shop"},
            [{"default": ["pooler", True], "replica": ["replica", True]}, "replica", None],
        ),
        (
            {"REDIS_CLUSTER": "true"},
            [{"default": ["pooler", True]}, "default", ["redis://redis:6379"]],
        ),
    ],
    ids=["one database", "a replica", "a cluster"],
)
def test_the_environment_names_the_servers(variables, expected):
    """Each further server is an alias of its own with one use; without it the first one serves that use."""
    assert shown(**variables) == expected
