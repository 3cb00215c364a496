"""The shop's page of settings: names, types, defaults, and what each variable sets, are those of the code."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.conf import global_settings

from config import coordination, serve
from tests import ROOT
from tests.docs.pages import SHOP, coded, rows, section

PAGE = SHOP / "reference" / "settings.md"
SETTINGS = ROOT / "config" / "settings.py"
SERVERS = {"DATABASE_URL": "postgres://ada@db.example/shop", "REDIS_URL": "redis://redis.example:6379/0"}
PRODUCTION = {"DEBUG": "false", "SECRET_KEY": "only-of-this-test"}

Settings = dict[str, Any]
Load = Callable[..., Settings]

ELSEWHERE: dict[str, Callable[[Settings], Any]] = {
    "WATCHDOG_TTL": lambda loaded: loaded["LOCKING"]["default"]["WATCHDOG_TTL"],
    "CONN_MAX_AGE": lambda loaded: loaded["DATABASES"]["default"]["CONN_MAX_AGE"],
    "PREPARE_THRESHOLD": lambda loaded: loaded["DATABASES"]["default"]["OPTIONS"]["prepare_threshold"],
    "LOG_LEVEL": lambda loaded: loaded["LOGGING"]["root"]["level"],
    "SECURE_PROXY_SSL_HEADER": lambda loaded: loaded.get("SECURE_PROXY_SSL_HEADER", [""])[0],
    "SECURE_COOKIES": lambda loaded: loaded["SESSION_COOKIE_SECURE"],
    "DATABASE_URL": lambda loaded: loaded["DATABASES"]["default"]["HOST"],
    "DATABASE_REPLICA_URL": lambda loaded: loaded["DATABASES"].get("replica", {}).get("HOST"),
    "ZOOKEEPER_HOSTS": lambda loaded: loaded["LOCKING"]["zookeeper"]["LOCATION"],
    "ETCD_ENDPOINTS": lambda loaded: loaded["LOCKING"]["etcd"]["LOCATION"],
    "REDLOCK_URLS": lambda loaded: loaded["LOCKING"]["redlock"]["LOCATION"],
}
"""Where a variable arrives that sets no setting of its own name."""

IN_WORDS = {
    "SECRET_KEY",
    "LOCKING_RUNTIME_DIR",
    *SERVERS,
    "DATABASE_REPLICA_URL",
    "ZOOKEEPER_HOSTS",
    "ETCD_ENDPOINTS",
    "REDLOCK_URLS",
}
"""Variables whose default is no value: the page says what happens without them."""

PROBES: dict[str, tuple[str, Any]] = {
    "API_KEYS": (f"till:{'0' * 64}", {"0" * 64: ("till", ())}),
    "SECURE_PROXY_SSL_HEADER": ("X-Forwarded-Proto", "HTTP_X_FORWARDED_PROTO"),
    "DATABASE_URL": ("postgres://ada@other.example/shop", "other.example"),
    "DATABASE_REPLICA_URL": ("postgres://ada@replica.example/shop", "replica.example"),
}
"""Values for variables that are more than their type: what is set, and what arrives."""

OF_TYPE: dict[str, tuple[str, Any]] = {
    "int": ("37", 37),
    "float": ("3.5", 3.5),
    "str": ("probe", "probe"),
    "list": ("a,b", ["a", "b"]),
    "URL": ("redis://other.example", "redis://other.example"),
}


def documented() -> dict[str, tuple[str, str, str]]:
    """Return type, default and meaning of each variable on the page."""
    tables = [section(PAGE, title) for title in ("The shop", "Servers, and what is needed to run at all")]
    return {coded(row[0])[0]: (row[1], row[2], row[3]) for table in tables for row in rows(table)}


def read() -> Iterator[tuple[str, str, str]]:
    """Yield name, type and source of each variable that the settings read."""
    text = SETTINGS.read_text()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="env"), attr=kind), args=[ast.Constant(str(name)), *_]
            ):
                lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
                yield name, "URL" if name in SERVERS else kind, "\n".join(lines)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="env")), args=[]):
                raise AssertionError(f"config/settings.py:{node.lineno} reads a variable without a name")


TYPES = {name: kind for name, kind, _ in read()} | {
    coordination.ZOOKEEPER: "str",
    coordination.ETCD: "list",
    coordination.REDLOCK: "list",
    **dict.fromkeys(["DATABASE_URL", "DATABASE_REPLICA_URL"], "URL"),
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Run the settings with no variables but those that are given, and the addresses of servers."""
    for name in TYPES:
        monkeypatch.delenv(name, raising=False)

    def run(**variables: str) -> Settings:
        with monkeypatch.context() as patch:
            for name, value in (SERVERS | variables).items():
                patch.setenv(name, value)
            return runpy.run_path(str(SETTINGS))

    return run


def arrived(name: str, loaded: Settings) -> Any:
    """Return what has become of a variable."""
    return ELSEWHERE[name](loaded) if name in ELSEWHERE else loaded[name]


def in_production(name: str) -> dict[str, str]:
    """Return what else has to be set for a variable to be read."""
    return PRODUCTION if name.startswith("SECURE_") else {}


def test_the_page_has_each_variable_and_its_type() -> None:
    """The settings read the variables of the page, as values of the types that it says, and no others."""
    assert {name: kind for name, (kind, _, _) in documented().items()} == TYPES


@pytest.mark.parametrize("name", sorted(set(TYPES) - IN_WORDS))
def test_a_default_is_the_code_s(name: str, load: Load) -> None:
    """Without the variable the setting is what the page says; a name stands for that setting's value."""
    loaded = load(**in_production(name))
    kind, default, _ = documented()[name]
    assert as_written(arrived(name, loaded)) == value_of(default, partial(arrived, loaded=loaded)), kind


def as_written(value: Any) -> str:
    """Return a value as one writes it into the environment."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def value_of(cell: str, setting: Callable[[str], Any]) -> str:
    """Return the value that a cell begins with; `NAME` and `10 × NAME` are computed from that setting."""
    shown = re.split(r"[;,] ", cell)[0]
    if times := re.fullmatch(r"(\d+) × `(\w+)`", shown):
        return as_written(int(times[1]) * setting(times[2]))
    if re.fullmatch(r"`[A-Z_]+`", shown) and shown.strip("`") in TYPES:
        return as_written(setting(shown.strip("`")))
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", shown.strip("`"))


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_variable_sets_what_the_page_says(name: str, load: Load) -> None:
    """The value of a variable arrives in the setting of its name, or where the page's first table says."""
    before = load(**in_production(name))
    if TYPES[name] == "bool":
        turned = not arrived(name, before)
        value, expected = str(turned).lower(), turned
    else:
        value, expected = PROBES.get(name, OF_TYPE[TYPES[name]])
    loaded = load(**{"SECRET_KEY": "probe", **in_production(name), name: value})
    assert arrived(name, loaded) == expected


def test_the_exceptions_are_on_the_page() -> None:
    """The first table has each variable that sets no setting of its own name."""
    table = rows(PAGE.read_text().partition("\n## ")[0])
    assert {name for row in table for name in coded(row[0])} == set(ELSEWHERE)


@pytest.mark.parametrize("name", sorted(set(TYPES) - set(ELSEWHERE)))
def test_a_setting_is_used(name: str) -> None:
    """A setting of the page is one that Django, Celery or the project's code reads."""
    known = hasattr(global_settings, name) or name.startswith(("CELERY_", "LOCKING_"))
    pattern = re.compile(rf"settings\.{name}\b|\"{name}\"")
    assert known or any(pattern.search(path.read_text()) for path in code())


def code() -> Iterator[Path]:
    for folder in ("config", "inventory", "orders"):
        yield from (path for path in (ROOT / folder).rglob("*.py") if path != SETTINGS)


def test_units_are_on_the_page() -> None:
    """Where the code says that a number is of seconds, so does the page."""
    seconds = {name for name, kind, source in read() if kind in ("int", "float") and "seconds" in source}
    assert len(seconds) >= 4
    assert [name for name in seconds if "seconds" not in documented()[name][2].lower()] == []


def test_what_make_serve_sets() -> None:
    """The page has the defaults of `make serve` where they differ."""
    shown = {
        name: match[1]
        for name, (_, default, _) in documented().items()
        if (match := re.search(r"(?:`make serve`: ([\w.]+))", default))
    }
    assert shown == serve.SERVED


def test_the_periodic_tasks(load: Load) -> None:
    """The page has each periodic task and its period in seconds."""
    table = rows(section(PAGE, "Periodic tasks"))
    scheduled = load()["CELERY_BEAT_SCHEDULE"].values()
    assert {coded(row[0])[0]: int(row[1].replace(",", "")) for row in table} == {
        entry["task"]: entry["schedule"] for entry in scheduled
    }
