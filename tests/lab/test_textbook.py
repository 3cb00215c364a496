"""Every strategy is described in the same form, so that the lab and the race can print it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from orders.lab.strategies import STRATEGIES

HEADINGS = ["Idea:", "Interleaving:", "Verdict:", "Cost:"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_has_one_file_one_name_and_four_headings(name):
    """The file, the registry and the class agree on the name, and the docstring has the headings in order."""
    strategy = STRATEGIES[name]
    assert strategy.name == name
    assert Path(inspect.getfile(strategy)).stem == name
    lines = [line.strip() for line in inspect.cleandoc(strategy.__doc__ or "").splitlines()]
    assert [line for line in lines if line in HEADINGS] == HEADINGS


@pytest.mark.parametrize("script", sorted(Path("orders/lab/lua").glob("*.lua")), ids=lambda path: path.stem)
def test_a_script_says_what_it_takes_and_returns(script):
    """Each Lua script opens with its KEYS, its ARGV and what it returns."""
    head = "\n".join(
        line for line in script.read_text().split("\n\n")[0].splitlines() if line.startswith("--")
    )
    assert all(word in head for word in ("KEYS", "ARGV", "Returns"))
