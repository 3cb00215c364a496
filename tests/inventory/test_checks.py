"""The system checks of CHECKOUT_STRATEGY and SOLD_OUT_MEMORY."""

from __future__ import annotations

import pytest

from inventory.checks import check_checkout_strategy, check_sold_out_memory
from inventory.strategies import STRATEGIES


def found(settings, strategy, *, debug: bool) -> list[str | None]:
    """Return the ids that the check reports."""
    settings.CHECKOUT_STRATEGY, settings.DEBUG = strategy, debug
    return [message.id for message in check_checkout_strategy(None)]


@pytest.mark.parametrize("strategy", [name for name, s in STRATEGIES.items() if not s.sound])
def test_a_broken_strategy_is_refused_outside_debug(settings, strategy):
    """A shop can't be served with a strategy that oversells; under DEBUG one may look at it."""
    assert found(settings, strategy, debug=False) == ["inventory.E002"]
    assert found(settings, strategy, debug=True) == []


@pytest.mark.parametrize("strategy", ["nonsense", "", None, 7, ["row_lock"]])
def test_an_unknown_strategy_is_always_refused(settings, strategy):
    """A misspelt name is found at the start, not by the first buyer."""
    assert found(settings, strategy, debug=True) == ["inventory.E001"]


def test_the_hint_names_only_what_may_be_chosen(settings):
    """The hint lists the strategies that are sound in any number of processes."""
    settings.CHECKOUT_STRATEGY = "nonsense"
    (message,) = check_checkout_strategy(None)
    assert "redis_lock" in str(message.hint)
    assert "local_lock" not in str(message.hint)
    assert "lost_update" not in str(message.hint)


def test_a_strategy_without_its_settings_is_refused(settings, monkeypatch):
    """A strategy that locks where LOCKING has no alias is found at the start, and never hinted at."""
    monkeypatch.setattr(STRATEGIES["row_lock"], "unconfigured", lambda: "set ROW_HOSTS")
    assert found(settings, "row_lock", debug=True) == ["inventory.E003"]
    settings.CHECKOUT_STRATEGY = "nonsense"
    (message,) = check_checkout_strategy(None)
    assert "row_lock" not in str(message.hint)


def test_one_process_alone_is_warned_of(settings):
    """local_lock is allowed for a server of one process, with a warning."""
    assert found(settings, "local_lock", debug=False) == ["inventory.W001"]


@pytest.mark.parametrize(
    "strategy", [n for n, s in STRATEGIES.items() if s.sound and s.sound_across_processes]
)
def test_a_sound_strategy_passes(settings, strategy):
    """Nothing is said about a strategy that holds."""
    assert found(settings, strategy, debug=False) == []


@pytest.mark.parametrize("seconds", [-1, 61, float("nan"), float("inf"), "0.25", None])
def test_a_memory_that_is_no_time_is_refused(settings, seconds):
    """The message names the value and what would do."""
    settings.SOLD_OUT_MEMORY = seconds
    (message,) = check_sold_out_memory(None)
    assert (message.id, repr(seconds) in str(message.msg)) == ("inventory.E005", True)


@pytest.mark.parametrize("seconds", [0, 0.25, 60])
def test_a_memory_of_some_seconds_is_accepted(settings, seconds):
    """So is none."""
    settings.SOLD_OUT_MEMORY = seconds
    assert check_sold_out_memory(None) == []
