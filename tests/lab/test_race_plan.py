"""What may be raced, and what is refused before anything is started."""

import pytest

from orders.lab.race.plan import Plan, PlanError, choose, parse_gap, present, share_out
from orders.lab.strategies import STRATEGIES

PLAN = Plan(buyers=40, stock=10, gap=0.02, processes=4)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20ms", 0.02), ("0.5s", 0.5), ("1s", 1.0), ("0", 0.0), ("1.5ms", 0.0015), (" 3ms ", 0.003)],
)
def test_a_gap_is_read_with_its_unit(text, seconds):
    """A length of time is a number and a unit, and nothing needs no unit."""
    assert parse_gap(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("20", "write 20ms or 20s"),
        ("", "such as 20ms"),
        ("-1s", "such as 20ms"),
        ("1m", "such as 20ms"),
        ("٣ms", "20ms"),
    ],
)
def test_a_gap_that_cannot_be_read_is_refused_with_advice(text, advice):
    """The refusal repeats what was typed and says what to type instead."""
    with pytest.raises(PlanError, match=advice) as refusal:
        parse_gap(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"buyers": 0}, "buyers is 0"),
        ({"buyers": 1001}, "buyers is 1001"),
        ({"stock": -1}, "stock is -1"),
        ({"processes": 0}, "processes is 0"),
        ({"processes": 41}, "only 40 buyers"),
        ({"gap": 11.0}, "gap is 11 s"),
        ({"tries": 0}, "tries is 0"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(numbers, words):
    """Each parameter has a range, and the refusal names the parameter and its value."""
    with pytest.raises(PlanError, match=words):
        Plan(**{"buyers": 40, "stock": 10, "gap": 0.02, "processes": 4} | numbers)


def test_due_is_the_smaller_of_stock_and_demand():
    """A correct shop sells all it has or all that is wanted."""
    assert Plan(buyers=5, stock=10, processes=1).due == 5
    assert Plan(buyers=50, stock=10).due == 10


def test_all_races_every_strategy_broken_ones_first():
    """`all` has each registered strategy at least once, and the faults come before the fixes."""
    variants = choose("all", STRATEGIES, PLAN)
    assert {variant.strategy for variant in variants} == set(STRATEGIES)
    assert [variant.sound for variant in variants] == sorted(variant.sound for variant in variants)


def test_a_lock_of_one_process_races_twice():
    """The local lock is sound in one process and a second variant is to show it broken across several."""
    alone, across = choose("local_lock,local_lock@processes", STRATEGIES, PLAN)
    assert (alone.sound, alone.processes) == (True, 1)
    assert (across.sound, across.processes, across.strategy) == (False, 4, "local_lock")


def test_names_are_trimmed_and_merged():
    """A name written twice is raced once."""
    assert [v.name for v in choose(" row_lock, row_lock,lost_update ", STRATEGIES, PLAN)] == [
        "row_lock",
        "lost_update",
    ]


@pytest.mark.parametrize(
    "selection", ["", " , ", "rowlock", "row_lock@processes", "local_lock@processes,nope"]
)
def test_an_unknown_selection_is_refused(selection):
    """A name that isn't there, or none at all, never races something else instead."""
    with pytest.raises(PlanError, match="strategy"):
        choose(selection, STRATEGIES, PLAN)


def test_one_process_can_not_show_a_local_lock_broken():
    """With a single process there is no variant across processes."""
    plan = Plan(buyers=4, stock=1, processes=1)
    assert "local_lock@processes" not in {v.name for v in choose("all", STRATEGIES, plan)}
    with pytest.raises(PlanError, match="--processes 2"):
        choose("local_lock@processes", STRATEGIES, plan)


@pytest.fixture
def no_row_lock(monkeypatch):
    """A strategy whose server isn't there."""
    monkeypatch.setattr(STRATEGIES["row_lock"], "unavailable", lambda: "no server answers")


@pytest.mark.usefixtures("no_row_lock")
def test_all_leaves_out_what_has_no_server():
    """Of `all`, a strategy that can't sell here is left out, with its reason; the others race."""
    all_of_them = choose("all", STRATEGIES, PLAN)
    variants, absent = present("all", all_of_them, STRATEGIES)
    assert absent["row_lock"] == "no server answers"
    assert {v.strategy for v in variants} | set(absent) == {v.strategy for v in all_of_them}
    assert "row_lock" not in {v.strategy for v in variants}


@pytest.mark.usefixtures("no_row_lock")
def test_a_named_strategy_without_its_server_is_refused():
    """A strategy that can't be raced is refused by name with the reason, instead of an empty table."""
    with pytest.raises(PlanError, match="'row_lock' can't be raced here: no server answers"):
        present("row_lock", choose("row_lock", STRATEGIES, PLAN), STRATEGIES)


@pytest.mark.parametrize(("buyers", "processes", "workers"), [(40, 4, 4), (7, 3, 5), (1, 1, 4), (200, 1, 4)])
def test_every_buyer_is_dealt_to_exactly_one_worker(buyers, processes, workers):
    """Hands are even, and the workers that don't take part have none."""
    hands = share_out(buyers, processes, workers)
    assert len(hands) == workers
    assert sorted(number for hand in hands for number in hand) == list(range(1, buyers + 1))
    assert max(map(len, hands[:processes])) - min(map(len, hands[:processes])) <= 1
    assert not any(hands[processes:])
