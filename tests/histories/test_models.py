"""The models: what is possible is accepted, what is not is refused, and Porcupine says the same."""

import random
from dataclasses import replace

import pytest

from histories import checker, models
from histories.models import FOREVER, MODELS, Operation, judge


def hold(owner: str, begin: int, end: int, token: int = 0, mode: str = "") -> list[Operation]:
    """Return a hold as a client logs it: acquired, found held, released."""
    return [
        Operation("acquire", begin, begin + 1, owner, token, mode=mode),
        Operation("held", end - 3, end - 2, owner, mode=mode),
        Operation("end", end - 1, end, owner, mode=mode),
    ]


def section(call: int, back: int, value: int, owner: str = "", token: int = 0) -> Operation:
    """Return a section that has read `value` and written one more."""
    return Operation("section", call, back, owner, token, value)


LOST = Operation("section", 0, FOREVER, "a", 1, 0, maybe=True)

POSSIBLE = {
    "lock: one after the other": ("lock", hold("a", 0, 10, 1) + hold("b", 11, 20, 2)),
    "lock: granted while the release is under way": ("lock", hold("a", 0, 10, 1) + hold("b", 9, 20, 2)),
    "lock: a killed holder's lease has ended": (
        "lock",
        [*hold("a", 0, 10)[:2], Operation("end", 1, FOREVER, "a"), *hold("b", 12, 20)],
    ),
    "semaphore: two at a time": ("semaphore", hold("a", 0, 10) + hold("b", 1, 9)),
    "read-write: two read": ("read_write", hold("a", 0, 10, mode="read") + hold("b", 1, 9, mode="read")),
    "register: each reads what the last has written": ("register", [section(0, 1, 0), section(2, 3, 1)]),
    "register: a lost answer was a commit": ("register", [LOST, section(5, 6, 1)]),
    "register: a lost answer was none": ("register", [LOST, section(5, 6, 0)]),
    "fenced: rising tokens": ("fenced", [section(0, 1, 0, "a", 1), section(2, 3, 1, "b", 2)]),
    "fenced: one hold twice": ("fenced", [section(0, 1, 0, "a", 1), section(2, 3, 1, "a", 1)]),
    "fenced: the next holder after a force release": (
        "fenced",
        [section(0, 1, 0, "a", 1), Operation("forbid", 2, 3, "a", 1), section(4, 5, 1, "b", 2)],
    ),
}

IMPOSSIBLE = {
    "lock: no owner check, so a release lets a third in": (
        "lock",
        [*hold("a", 0, 20), *hold("b", 5, 15)],
    ),
    "lock: a lease too long, believed in after the next grant": (
        "lock",
        [*hold("a", 0, 20)[:2], Operation("end", 1, FOREVER, "a"), *hold("b", 5, 15)],
    ),
    "lock: a token that doesn't rise": ("lock", hold("a", 0, 10, 2) + hold("b", 11, 20, 2)),
    "lock: extended after it was lost": (
        "lock",
        [*hold("a", 0, 10), Operation("held", 12, 13, "a")],
    ),
    "semaphore: three at a time": ("semaphore", hold("a", 0, 10) + hold("b", 1, 9) + hold("c", 3, 8)),
    "read-write: a writer beside a reader": (
        "read_write",
        hold("a", 0, 10, mode="read") + hold("b", 2, 8, mode="write"),
    ),
    "read-write: two write": (
        "read_write",
        hold("a", 0, 10, mode="write") + hold("b", 2, 8, mode="write"),
    ),
    "register: no fence, a stale holder overwrites": ("register", [section(0, 9, 0), section(3, 5, 0)]),
    "register: a commit that was lost": ("register", [section(0, 1, 0), section(2, 3, 0)]),
    "fenced: an overtaken holder writes": (
        "fenced",
        [section(0, 1, 0, "b", 2), section(2, 3, 1, "a", 1)],
    ),
    "fenced: a number minted twice": ("fenced", [section(0, 1, 0, "a", 1), section(2, 3, 1, "b", 1)]),
    "fenced: the old holder after a force release": (
        "fenced",
        [section(0, 1, 0, "a", 1), Operation("forbid", 2, 3, "a", 1), section(4, 5, 1, "a", 1)],
    ),
}


@pytest.mark.parametrize(("model", "history"), list(POSSIBLE.values()), ids=list(POSSIBLE))
def test_a_possible_history_is_accepted(model, history):
    assert judge(model, history) == "Ok"


@pytest.mark.parametrize(("model", "history"), list(IMPOSSIBLE.values()), ids=list(IMPOSSIBLE))
def test_an_impossible_history_is_refused(model, history):
    assert judge(model, history) == "Illegal"


def test_a_history_that_would_take_too_long_is_called_unknown(monkeypatch):
    monkeypatch.setattr(models, "MOST", 3)
    assert judge("semaphore", [*hold("a", 0, 10), *hold("b", 1, 9)]) == "Unknown"


def made_up(chance: random.Random, model: str) -> list[Operation]:
    """Return a short history, with intervals moved at random, which few are possible with."""
    if model in ("register", "fenced"):
        history = [section(10 * n, 10 * n + 8, n, f"o{n}", n + 1) for n in range(5)]
        if model == "fenced":
            history[2] = replace(history[2], action=chance.choice(["section", "forbid"]))
    else:
        mode = (lambda: chance.choice(["read", "write"])) if model == "read_write" else lambda: ""
        history = [step for n in range(4) for step in hold(f"o{n}", 10 * n, 10 * n + 8, n + 1, mode())]
    shift = chance.choice([0, 2, 6, 12])
    return [
        replace(
            one, call=max(0, one.call - chance.randint(0, shift)), back=one.back + chance.randint(0, shift)
        )
        for one in history
        if chance.random() > 0.05
    ]


@pytest.mark.whole
@pytest.mark.skipif(checker.go() is None, reason="no go on PATH or in /usr/local/go/bin")
def test_porcupine_says_what_the_python_checker_says(tmp_path):
    """Both judge the histories above and 400 made-up ones of each model alike."""
    chance = random.Random(35)
    cases = {checker.History(model, name): its for name, (model, its) in (POSSIBLE | IMPOSSIBLE).items()}
    for model in MODELS:
        cases |= {checker.History(model, str(n)): made_up(chance, model) for n in range(400)}
    lines = [(history, operation) for history, operations in cases.items() for operation in operations]
    said = checker.judge(checker.build(tmp_path), lines)
    expected = {
        history: judge(history.model, operations) for history, operations in cases.items() if operations
    }
    assert said == expected
    assert len(set(expected.values())) == 2
