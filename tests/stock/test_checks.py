"""Every mistake in `INVENTORY` or the database is said by a check, with what to do."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db import connections, models
from django.test.utils import isolate_apps

from inventory import checks
from inventory.models import StockField


def ids(settings: Any, **inventory: Any) -> list[str]:
    """Return the checks' ids for this setting."""
    settings.INVENTORY = inventory
    return [str(each.id) for each in checks.check_settings()]


@pytest.mark.parametrize(
    "alias",
    [
        {"STRATEGY": "conditional"},
        {"STRATEGY": "builtins.dict"},
        {"STRATEGIE": "locked"},
        {"DATABASE": "nowhere"},
        {"WAIT": 0},
        {"WAIT": True},
        {"OPTIONS": ["most"]},
        {"STRATEGY": "combined", "OPTIONS": {"MOST": 0}},
        {"STRATEGY": "combined", "OPTIONS": {"UNKNOWN": 1}},
        "locked",
    ],
)
def test_a_mistake_in_the_setting_is_named(settings: Any, alias: Any) -> None:
    settings.INVENTORY = {"default": alias}
    (found,) = checks.check_settings()
    assert found.id == "inventory.E001"
    assert "INVENTORY['default']" in found.msg


def test_settings_that_are_right_pass(settings: Any) -> None:
    assert ids(settings) == []
    assert ids(settings, default={}, hot={"STRATEGY": "combined", "OPTIONS": {"MOST": 8}}) == []
    assert ids(settings, lite={"DATABASE": "sqlite"}, maria={"DATABASE": "mariadb"}) == []
    settings.INVENTORY = []
    assert [each.id for each in checks.check_settings()] == ["inventory.E001"]


def test_another_vendor_is_refused(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    assert ids(settings) == ["inventory.E002"]


def test_locks_need_the_app(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "locking"]
    assert ids(settings, default={"STRATEGY": "locked"}) == ["inventory.E003"]


@pytest.mark.parametrize(
    ("options", "id"),
    [({"CACHE": "nowhere"}, "inventory.E004"), ({"CACHE": "own"}, "inventory.E005")],
)  # fmt: skip
def test_the_gate_needs_a_shared_cache(settings: Any, options: Any, id: str) -> None:
    settings.CACHES = {**settings.CACHES, "own": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    assert ids(settings, default={"STRATEGY": "redis_gate", "OPTIONS": options}) == [id]


def test_sqlite_should_begin_transactions_by_writing(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["sqlite"].settings_dict, "OPTIONS", {})
    assert ids(settings, default={"DATABASE": "sqlite"}) == ["inventory.W001"]


DROP = {
    "postgresql": "ALTER TABLE inventory_movement DISABLE TRIGGER inventory_apply",
    "sqlite": "DROP TRIGGER inventory_apply",
}


def test_missing_triggers_are_said(using: str, settings: Any) -> None:
    settings.INVENTORY = {"default": {"DATABASE": using}}
    assert checks.check_triggers(databases=[using]) == []
    if statement := DROP.get(connections[using].vendor):  # MariaDB would commit
        with connections[using].cursor() as cursor:
            cursor.execute(statement)
        assert [each.id for each in checks.check_triggers(databases=[using])] == ["inventory.E006"]


@isolate_apps("tests.stock.shop", attr_name="apps")
def test_the_field_that_holds_the_sku_must_be_there() -> None:
    class Wrong(models.Model):  # noqa: DJ008 - never shown
        stock = StockField(sku="isbn")

        class Meta:
            app_label = apps.get_app_config("shop").label

    found = Wrong._meta.get_field("stock").check()  # type: ignore[union-attr]
    assert found[-1].id == "inventory.E010"
