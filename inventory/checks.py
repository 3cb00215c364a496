"""System checks: a shop must not run on a strategy that is here to be seen failing."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from inventory.strategies import STRATEGIES


@register
def check_checkout_strategy(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse a CHECKOUT_STRATEGY that doesn't exist; outside DEBUG, one that isn't sound."""
    name = getattr(settings, "CHECKOUT_STRATEGY", None)
    strategy = STRATEGIES.get(name) if isinstance(name, str) else None
    sound = ", ".join(
        other.name
        for other in STRATEGIES.values()
        if other.sound and other.sound_across_processes and not other.unconfigured()
    )
    if strategy is None:
        return [
            Error(f"CHECKOUT_STRATEGY is {name!r}: unknown.", hint=f"Choose of {sound}.", id="inventory.E001")
        ]
    if lack := strategy.unconfigured():
        return [
            Error(
                f"CHECKOUT_STRATEGY is {name!r}: {lack}.", hint=f"Or choose of {sound}.", id="inventory.E003"
            )
        ]
    if not strategy.sound and not settings.DEBUG:
        message = f"CHECKOUT_STRATEGY is {name!r}, which sells more than there is."
        return [Error(message, hint=f"Choose of {sound}.", id="inventory.E002")]
    if not strategy.sound_across_processes and not settings.DEBUG:
        message = f"CHECKOUT_STRATEGY is {name!r}, which is sound within one process only."
        return [Warning(message, hint=f"Choose of {sound}, or serve with one process.", id="inventory.W001")]
    return []
