"""Clients' log lines become operations: all that is known of a hold or a section."""

import json
from dataclasses import replace

import pytest

from histories import record, run, table, violation
from histories.checker import History
from histories.models import FOREVER, Operation, judge
from histories.systems import SYSTEMS


@pytest.fixture
def logged(tmp_path):
    """Return the histories and the record of the events that it is given: name, event and facts, in order."""

    def read(*events):
        lines = [
            {"at": at, "operation": name, "event": event, **facts}
            for at, (name, event, facts) in enumerate(events, 1)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "c1.jsonl").write_text(text + '{"at": 99, "oper')  # killed in the middle of a line
        seen = record.read(tmp_path)
        return record.histories(seen), seen

    return read


def called(name, action, key, **facts):
    """Return the event of an invocation."""
    return (name, "call", {"action": action, "key": key, **facts})


LOCK = History("lock", "lock")
HELD = [
    called("1", "acquire", "lock-7"),
    ("1", "ok", {"owner": "a", "token": 5}),
    called("2", "held", "lock-7", owner="a"),
    ("2", "ok", {}),
    called("3", "release", "lock-7", owner="a"),
]


def test_a_confirmed_release_ends_the_hold_within_its_interval(logged):
    found, _ = logged(*HELD, ("3", "ok", {}))
    assert found[LOCK] == [
        Operation("acquire", 1, 2, "a", 5),
        Operation("held", 3, 4, "a"),
        Operation("end", 5, 6, "a"),
    ]


@pytest.mark.parametrize("outcome", [[], [("3", "unknown", {})], [("3", "fail", {"error": "LockLost"})]])
def test_an_unconfirmed_release_ends_the_hold_at_some_time_after_its_last_sign(logged, outcome):
    found, _ = logged(*HELD, *outcome)
    assert found[LOCK][-1] == Operation("end", 3, FOREVER, "a")


BROKEN = called("4", "forbid", "lock-7", owner="a")


def test_a_forced_release_ends_the_hold_whatever_its_holder_believes(logged):
    believed = [called("5", "held", "lock-7", owner="a"), ("5", "ok", {})]
    found, _ = logged(*HELD[:-1], BROKEN, ("4", "ok", {"done": True}), *believed)
    assert found[LOCK][1:] == [Operation("held", 3, 4, "a"), Operation("end", 5, 6, "a")]


def test_a_forced_release_without_an_answer_may_have_ended_the_hold_at_any_later_time(logged):
    found, _ = logged(*HELD[:-1], BROKEN, ("4", "unknown", {}), HELD[-1], ("3", "ok", {}))
    assert found[LOCK][1:] == [Operation("held", 3, 4, "a"), Operation("end", 5, FOREVER, "a")]


def test_a_forced_release_that_came_too_late_changes_nothing(logged):
    found, _ = logged(*HELD, ("3", "ok", {}), BROKEN, ("4", "ok", {"done": False}))
    assert found[LOCK][-1] == Operation("end", 5, 6, "a")


def test_an_acquisition_without_an_answer_says_nothing(logged):
    found, _ = logged(called("1", "acquire", "lock-7"), ("1", "unknown", {"error": "BackendUnavailable"}))
    assert found[LOCK] == []


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ([("1", "ok", {})], Operation("section", 1, 3, "a", 5, 0)),
        ([], Operation("section", 1, FOREVER, "a", 5, 0, maybe=True)),
        ([("1", "unknown", {})], Operation("section", 1, FOREVER, "a", 5, 0, maybe=True)),
        ([("1", "fail", {})], None),
    ],
    ids=["committed", "killed", "no answer", "rolled back"],
)
def test_a_section_that_has_written_may_have_committed_unless_it_is_known_not_to(logged, end, expected):
    wrote = ("1", "wrote", {"value": 0, "token": 5, "owner": "a"})
    found, _ = logged(called("1", "section", "fenced-7"), wrote, *end)
    assert found[History("fenced", "fenced")] == ([] if expected is None else [expected])


def test_a_section_that_was_killed_before_it_wrote_has_no_effect(logged):
    found, _ = logged(called("1", "section", "bare-7"))
    assert found[History("register", "bare")] == []


def test_an_overwritten_section_is_counted_and_refused(logged):
    events = []
    for name in "12":
        events += [called(name, "section", "bare-7"), (name, "wrote", {"value": 0}), (name, "ok", {})]
    found, seen = logged(*events)
    assert record.figures(seen, 0, 10).lost == {"bare": 1}
    assert judge("register", found[History("register", "bare")]) == "Illegal"


def test_the_longest_time_without_a_grant_and_the_seconds_with_one_are_measured(logged):
    _, seen = logged(*HELD)
    second = 10**9
    seen.events[0].back = 2 * second
    measured = record.figures(seen, 0, 10 * second)
    assert (measured.availability, measured.next_holder) == (0.1, 8.0)


def test_the_table_never_says_none_of_what_was_not_judged():
    """Only the checker's Ok is a 0; Unknown, and what no checker has seen, are not."""
    cell = {"verdicts": {"lock": "Unknown", "bare": "not judged", "fenced": "Ok"}, "figures": {"lost": {}}}
    shown = [table.lost(cell, kind) for kind in ("bare", "confirmed", "fenced")]
    assert [table.holders(cell), *shown] == [None, "?", "–", "0"]


@pytest.mark.parametrize(
    ("verdicts", "lost", "expected"),
    [
        ({"lock": "Ok", "bare": "Ok", "confirmed": "Ok", "fenced": "Ok"}, {}, "0/0, 1.0 s"),
        ({"lock": "Illegal", "bare": "Ok", "confirmed": "Ok", "fenced": "Ok"}, {}, "**0†/0**, 1.0 s"),
        ({"bare": "Illegal", "confirmed": "Illegal"}, {"bare": 2, "confirmed": 1}, "**3/–**, 1.0 s"),
        ({"confirmed": "Ok", "fenced": "Illegal"}, {"fenced": 4}, "**0/4**, 1.0 s"),
        ({"bare": "Ok", "confirmed": "Ok", "fenced": "Illegal"}, {}, "**0/order**, 1.0 s"),
        ({"lock": "Unknown", "bare": "Ok", "fenced": "Unknown"}, {}, "**0?/?**, 1.0 s"),
    ],
)
def test_a_cell_says_in_bold_what_should_not_be(verdicts, lost, expected):
    """Writes lost without and with a fence, two holders, what wasn't judged, and the longest wait."""
    assert table.entry({"verdicts": verdicts, "figures": {"lost": lost, "next_holder": 1.0}}) == expected


def test_two_holders_of_one_lock_are_named_and_one_after_the_other_are_not(logged):
    """The second is granted while the first is known to hold; the release in between makes the difference."""
    second = [called("9", "acquire", "lock-7", client="c2"), ("9", "ok", {"owner": "b", "token": 6})]
    look = [called("8", "held", "lock-7", owner="a", client="c1"), ("8", "ok", {})]
    first = [called("1", "acquire", "lock-7", client="c1"), *HELD[1:4]]
    _, seen = logged(*first, *second, *look)
    assert [(a.client, b.client) for a, b in violation.two_holders(seen.events)] == [("c1", "c2")]
    _, seen = logged(*first, *look, *second)
    assert violation.two_holders(seen.events) == []


def test_a_mistake_that_was_not_found_is_a_trouble():
    cell = run.Cell("redis", "calm", 1, 7.0, "lock", {"bare": "Ok", "confirmed": "Ok"}, {})
    assert cell.troubles() == ["redis under calm: the mistake 'lock' was not found"]
    assert not replace(cell, verdicts={"bare": "Illegal"}).troubles()


def test_a_broken_promise_is_a_trouble_and_a_lost_write_without_one_is_not():
    cell = run.Cell("redis", "calm", 1, 7.0, "", {"bare": "Illegal", "fenced": "Illegal"}, {})
    assert cell.troubles() == ["redis under calm: fenced is promised, and its history is impossible"]


def test_the_page_has_the_tables_of_what_was_seen():
    """`python -m histories.table` would change nothing."""
    text = table.PAGE.read_text()
    assert table.page(text, table.load()) == text
    assert table.CELLS.read_text() == table.listed(table.load())


def test_no_promised_history_was_impossible_and_each_mistake_was_found():
    """What was seen of each system under each fault, and judged: the promises of the pages."""
    cells = [run.Cell(**cell) for cell in table.load()]
    assert len(cells) > 150
    assert [trouble for cell in cells for trouble in cell.troubles()] == []
    promised = [
        cell.verdicts.get(kind) for cell in cells for kind in SYSTEMS[cell.system].promises if not cell.wrong
    ]
    assert set(promised) <= {"Ok", None}
