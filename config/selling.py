"""The demo's ways to sell: aliases of `INVENTORY`, of which CHECKOUT_STRATEGY names one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


def _locked(lock: str, **options: Any) -> dict[str, Any]:
    return {"STRATEGY": "locked", "OPTIONS": {"LOCK": lock, "SHARED_CONNECTION": True, **options}}


STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "conditional_update": {"STRATEGY": "conditional_update"},
    "write_first": {"STRATEGY": "write_first"},
    "combined": {"STRATEGY": "combined", "OPTIONS": {"SHARED_CONNECTION": True, "WRITE_FIRST": True}},
    "redis_gate": {"STRATEGY": "redis_gate"},
    "redis_lock": _locked("default"),
    "fenced_lock": _locked("default", FENCED=True),
    "database_lock": _locked("database"),
    "redlock": _locked("redlock"),
    "zookeeper_lock": _locked("zookeeper"),
    "etcd_lock": _locked("etcd"),
}
"""By name. Those that lock need an alias of LOCKING: a server that the environment names."""


def selling_strategies(
    chosen: str, locking: Mapping[str, Any], *, others: bool = True
) -> dict[str, dict[str, Any]]:
    """Return `INVENTORY`: an alias for each strategy whose lock is there, and the chosen one as the default.

    Args:
        chosen: the setting CHECKOUT_STRATEGY. locking: the setting LOCKING.
        others: whether a client may choose another one. A strategy that is set up hears of each delivery.

    A system check (`orders.E005`) refuses a chosen one that isn't among them.

    Example:
        >>> sorted(selling_strategies("combined", {"default": {}}))[:3]
        ['combined', 'conditional_update', 'default']
    """
    found = {
        name: entry
        for name, entry in STRATEGIES.items()
        if entry.get("OPTIONS", {}).get("LOCK", "default") in locking and (others or name == chosen)
    }
    return {"default": found.get(chosen, STRATEGIES["conditional_update"]), **found}
