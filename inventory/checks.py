"""System checks: a shop must not run on a strategy that is here to be seen failing, nor refuse for long."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.utils.module_loading import import_string

from inventory.strategies import STRATEGIES


@register
def check_checkout_strategy(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse a CHECKOUT_STRATEGY that doesn't exist; outside DEBUG, one that isn't sound."""
    name = getattr(settings, "CHECKOUT_STRATEGY", None)
    strategy = STRATEGIES.get(name) if isinstance(name, str) else None
    if strategy is None:
        return [_message("E001", f"{name!r}: unknown.", "Choose of {sound}.")]
    if lack := strategy.unconfigured():
        return [_message("E003", f"{name!r}: {lack}.", "Or choose of {sound}.")]
    if not strategy.sound and not settings.DEBUG:
        return [_message("E002", f"{name!r}, which sells more than there is.", "Choose of {sound}.")]
    if not strategy.sound_across_processes and not settings.DEBUG:
        what, hint = "which is sound within one process only", "Choose of {sound}, or serve with one process."
        return [_message("W001", f"{name!r}, {what}.", hint, Warning)]
    return []


@register
def check_location_rule(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse a STOCK_LOCATION_RULE that can't be imported: the first payment would find out."""
    name = str(getattr(settings, "STOCK_LOCATION_RULE", None))
    try:
        import_string(name)
    except ImportError:
        hint = "Name a function such as inventory.locations.first_with_enough."
        return [
            Error(f"STOCK_LOCATION_RULE is {name!r}: it can't be imported.", hint=hint, id="inventory.E004")
        ]
    return []


LONGEST_MEMORY: Final = 60.0
"""Seconds; stock that came back must not be refused for longer, should its announcement be lost."""


@register
def check_sold_out_memory(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse a SOLD_OUT_MEMORY that is no number of seconds, or so many that stock would lie unsold."""
    seconds = getattr(settings, "SOLD_OUT_MEMORY", 0.0)
    if isinstance(seconds, int | float) and 0 <= seconds <= LONGEST_MEMORY:
        return []
    what = f"SOLD_OUT_MEMORY is {seconds!r}: must be a number of seconds from 0 to {LONGEST_MEMORY:g}."
    hint = "Use 0.25, or 0 to have every buyer ask the database."
    return [Error(what, hint=hint, id="inventory.E005")]


def _message(number: str, what: str, hint: str, kind: type[Error | Warning] = Error) -> CheckMessage:
    sound = ", ".join(
        strategy.name
        for strategy in STRATEGIES.values()
        if strategy.sound and strategy.sound_across_processes and not strategy.unconfigured()
    )
    return kind(f"CHECKOUT_STRATEGY is {what}", hint=hint.format(sound=sound), id=f"inventory.{number}")
