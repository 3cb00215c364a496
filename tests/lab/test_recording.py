"""The recorded steps: all orders, what their strategies do, and the lines of the present code."""

import json

import pytest
from django.core.management import call_command

from orders.lab.management.commands.record_steps import RECORDED, STEPS
from orders.lab.pages.sources import source
from orders.lab.strategies import STRATEGIES


def recorded(name, folder=STEPS):
    """Return a recording."""
    return json.loads((folder / f"{name}.json").read_text())


def lanes_of(recording, state):
    """Return both lanes of a state."""
    return [recording["lanes"][number] for number in recording["states"][state][:2]]


@pytest.mark.parametrize("name", RECORDED)
def test_every_press_is_answered(name):
    """From each state every buyer who may go on does, and in the end both have their answer."""
    recording = recorded(name)
    ends = 0
    for state in range(len(recording["states"])):
        lanes = lanes_of(recording, state)
        for who, lane in zip("AB", lanes, strict=True):
            assert (f"{state}{who}" in recording["presses"]) == (lane["state"] == "parked"), (state, who)
        stuck = {lane["state"] for lane in lanes} <= {"running", "done"}
        ends += stuck
        led_to = [moves[:-1] for moves in recording["presses"].values()]
        on_the_way = any(at == state for moves in led_to for _, at in moves)
        assert not stuck or on_the_way or {lane["state"] for lane in lanes} == {"done"}, state
    assert ends > 1


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_recorded_is_what_the_strategy_does(name):
    """A broken one sells too much or ends in a deadlock in some order; a sound one in none."""
    recording = recorded(name)
    oversold = any(sold > 1 for *_, sold in recording["states"])
    deadlocked = any(mark == "deadlocked" for lane in recording["lanes"] for mark, *_ in lane["marks"])
    assert (oversold or deadlocked) == (not STRATEGIES[name].sound)


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_lines_are_those_of_the_present_code(name):
    """A buyer's line is one of its strategy that calls something."""
    lines = dict(source(name)["lines"])
    stood_on = {line for lane in recorded(name)["lanes"] for _, _, line in lane["marks"] if line}
    assert stood_on
    assert [line for line in stood_on if "(" not in lines.get(line, "")] == []


def test_nothing_recorded_names_the_machine():
    """No process, product or host of the recording's day is in the files."""
    for name in RECORDED:
        said = {lane["problem"] for lane in recorded(name)["lanes"]}
        assert not any(":A" in text or " after " in text for text in said), said


@pytest.mark.whole
@pytest.mark.django_db(transaction=True)
def test_a_new_recording_shows_the_same(tmp_path):
    """Recorded again, the buyers of `lost_update` pass through the same looks."""
    call_command("record_steps", strategy=["lost_update"], folder=tmp_path)
    first, again = recorded("lost_update"), recorded("lost_update", tmp_path)
    assert len(again["presses"]) == len(first["presses"])
    assert sorted(map(str, again["lanes"])) == sorted(map(str, first["lanes"]))
