"""The race finds the oversell in django-oscar's own checkout; those of `examples/oscar` pass."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests import ROOT
from tests.examples.test_oscar import HERE, PYTHON
from tests.private_redis import private_redis
from tests.support.scratch import scratch_database

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HERE, reason="needs django-oscar: pip install django-oscar gunicorn"),
]
BUYERS, PIECES = 12, 4


def raced(protected: str) -> dict[str, Any]:
    """Return what a race of the last button has shown."""
    with scratch_database("oscar_race") as database, private_redis() as redis:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
        environment |= {
            "DJANGO_SETTINGS_MODULE": "examples.oscar.settings",
            "SHOP_DATABASE": json.dumps(database),
            "SHOP_REDIS": redis.url,
            "SHOP": protected,
        }
        command = [PYTHON, "-m", "tests.racing.oscar_shop", str(BUYERS), str(PIECES)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_checkout_as_it_is_oversells(django_db_setup: None) -> None:
    """All buyers have read the same stock before anyone's piece is allocated."""
    found = raced("nothing")
    assert found["too_many"] > 0
    assert found["shared"]


@pytest.mark.parametrize("protected", ["inventory", "lock"])
def test_the_protected_checkout_passes(django_db_setup: None, protected: str) -> None:
    """As many orders as pieces."""
    found = raced(protected)
    assert (found["sold"], found["too_many"]) == (PIECES, 0)
