"""The check for django-health-check says what /readyz says of one lock backend."""

from __future__ import annotations

import json

import pytest
from django.test import override_settings
from health_check.views import HealthCheckView

from locking.contrib import health_check
from locking.contrib.health_check import LockBackend

DOWN = {"default": {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": "redis://127.0.0.1:9"}}


@pytest.fixture(autouse=True)
def new_probes():
    """Remember no backend of another test."""
    health_check._probes.cache_clear()


async def test_a_backend_that_answers_is_healthy():
    """No error, and the label names the alias."""
    result = await LockBackend(alias="default").get_result()
    assert result.error is None
    assert result.check.labels == {"check": "LockBackend", "alias": "default"}


async def test_a_backend_that_is_down_is_unavailable():
    """The error names the alias and the kind of failure, and no address."""
    with override_settings(LOCKING=DOWN):
        result = await LockBackend().get_result()
    assert "locks default: BackendUnavailable" in str(result.error)
    assert "127.0.0.1" not in str(result.error)


async def test_the_view_of_the_library_takes_it_by_its_path(async_rf):
    """As its documentation configures a check: a path and its options."""
    checks = [("locking.contrib.health_check.LockBackend", {"alias": "default"})]
    request = async_rf.get("/", headers={"Accept": "application/json"})
    answer = await HealthCheckView.as_view(checks=checks)(request)
    assert answer.status_code == 200
    assert "OK" in json.dumps(json.loads(answer.content))
