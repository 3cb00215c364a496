"""The `INVENTORY` setting: read lazily, checked once; every mistake is reported with its path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from inventory.strategies.base import Strategy

STRATEGIES: Final = {
    "conditional_update": "inventory.strategies.conditional_update.ConditionalUpdate",
    "write_first": "inventory.strategies.write_first.WriteFirst",
    "locked": "inventory.strategies.locked.Locked",
    "combined": "inventory.strategies.combined.Combined",
    "redis_gate": "inventory.strategies.redis_gate.RedisGate",
}
"""The built-in strategies by name. Others are named by the dotted path of their class."""


@dataclass(frozen=True)
class AliasSettings:
    """One entry of `INVENTORY`, checked.

    Attributes:
        alias: its name in the setting.
        strategy: who leads a sale with `write=`: a name of `STRATEGIES`, or a dotted path.
        database: alias in `DATABASES` that has the tables.
        wait: seconds that a sale which the strategy leads waits for a locked row.
        options: the strategy's own options.
    """

    alias: str = "default"
    strategy: str = "conditional_update"
    database: str = "default"
    wait: float = 10.0
    options: Mapping[str, Any] = field(default_factory=dict)


_KEYS: Final = ("STRATEGY", "DATABASE", "WAIT", "OPTIONS")


def aliases() -> list[str]:
    """Return the aliases of the setting; there is always `default`."""
    return list({"default": None, **_setting()})


@cache
def read_alias(alias: str) -> AliasSettings:
    """Return the settings of `alias`.

    Raises:
        ImproperlyConfigured: the message names the entry, the value and what it may be.
    """
    setting = _setting()
    if alias not in setting and alias != "default":
        raise ImproperlyConfigured(f"INVENTORY has no alias {alias!r}; it has {', '.join(aliases())}")
    raw = setting.get(alias, {})
    where = f"INVENTORY[{alias!r}]"
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"{where} must be a dict, not {raw!r}")
    if unknown := sorted(set(raw) - set(_KEYS)):
        raise ImproperlyConfigured(f"{where} has the unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    found = AliasSettings(alias, **{key.lower(): value for key, value in raw.items()})
    if found.database not in settings.DATABASES:
        raise ImproperlyConfigured(f"{where}['DATABASE'] is {found.database!r}, which DATABASES doesn't have")
    if isinstance(found.wait, bool) or not isinstance(found.wait, int | float) or found.wait <= 0:
        raise ImproperlyConfigured(f"{where}['WAIT'] must be seconds above 0, not {found.wait!r}")
    if not isinstance(found.options, Mapping):
        raise ImproperlyConfigured(f"{where}['OPTIONS'] must be a dict, not {found.options!r}")
    return found


def make_strategy(found: AliasSettings) -> Strategy:
    """Return the strategy of an alias, its options checked: one per process.

    A batch is of those who sell by the same strategy, and a `Stock` may be made for each sale.

    Raises:
        ImproperlyConfigured: no such strategy, or options that it doesn't take.
    """
    from inventory.strategies.base import Strategy

    if made := _made.get(repr(found)):
        return made
    where = f"INVENTORY[{found.alias!r}]"
    path = STRATEGIES.get(found.strategy, found.strategy)
    try:
        cls = import_string(path)
    except (ImportError, AttributeError) as error:
        raise ImproperlyConfigured(
            f"{where}['STRATEGY'] is {found.strategy!r}: {error}; "
            f"built in are {', '.join(STRATEGIES)}, others are dotted paths"
        ) from None
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise ImproperlyConfigured(
            f"{where}['STRATEGY'] {path!r} is no subclass of inventory.strategies.Strategy"
        )
    try:
        made = cls(found, **{str(key).lower(): value for key, value in found.options.items()})
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{where}['OPTIONS'] doesn't fit {found.strategy!r}: {error}") from None
    return _made.setdefault(repr(found), made)


_made: dict[str, Strategy] = {}
stocks: WeakSet[Any] = WeakSet()
"""Every `Stock`, which forgets what it has read here when a test overrides it."""


@cache
def _in_use() -> dict[str, list[Strategy]]:
    from inventory.strategies.base import Strategy

    found: dict[str, list[Strategy]] = {}
    for alias in aliases():
        strategy = make_strategy(read_alias(alias))
        if type(strategy).stock_changed is not Strategy.stock_changed:
            found.setdefault(strategy.settings.database, []).append(strategy)
    return found


def strategies_in_use(using: str) -> list[Strategy]:
    """Return the configured strategies of a database that want to know when stock has changed."""
    return _in_use().get(using, [])


def _setting() -> Mapping[str, Any]:
    setting = getattr(settings, "INVENTORY", {})
    if not isinstance(setting, Mapping):
        raise ImproperlyConfigured(f"INVENTORY must be a dict of aliases, not {setting!r}")
    return setting


@receiver(setting_changed)
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("INVENTORY", "DATABASES"):
        read_alias.cache_clear()
        _in_use.cache_clear()
        _made.clear()
        for stock in stocks:
            stock.__dict__.pop("settings", None)
            stock.__dict__.pop("strategy", None)
