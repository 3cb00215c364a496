"""Schedule, journal, wire, faults and figures: what the verdict of a load test rests on."""

import json
import re
import socket
import threading

import pytest

from tests.load import faults, figures, journal
from tests.load.buyers import UNKNOWN, Visit, buy
from tests.load.journal import Journal
from tests.load.report import write
from tests.load.schedule import Schedule
from tests.load.wire import Address, Wire

SCHEDULE = Schedule(rate=50, seconds=4, skus=("a", "b", "c"), seed=3)


def test_arrivals_are_even_and_each_is_played_once():
    """Buyer n comes at n / rate, and the processes share the buyers without leaving or doubling one."""
    assert len(SCHEDULE) == 200
    assert [SCHEDULE.at(n) for n in (0, 50, 199)] == [0, 1, 3.98]
    played = sorted(number for part in range(3) for number in SCHEDULE.share(part, 3))
    assert played == list(range(200))


def test_baskets_are_the_same_in_every_process():
    """The baskets follow from the seed alone, and their sum is the demand."""
    again = Schedule(rate=50, seconds=4, skus=("a", "b", "c"), seed=3)
    assert [SCHEDULE.basket(n) for n in range(200)] == [again.basket(n) for n in range(200)]
    assert sum(SCHEDULE.demand().values()) == sum(sum(SCHEDULE.basket(n).values()) for n in range(200))
    assert SCHEDULE.demand()["a"] > SCHEDULE.demand()["b"]


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"seconds": -1}, {"skus": ()}])
def test_an_impossible_schedule_is_refused(wrong):
    """No rate, no time, no products: said at once."""
    with pytest.raises(ValueError, match="must be above 0"):
        Schedule(**{"rate": 1, "seconds": 1, "skus": ("a",), "seed": 1, **wrong})


def test_what_a_journal_wrote_is_read_back(tmp_path):
    """Orders, refusals and silence, from several files."""
    with Journal(tmp_path / "1") as one, Journal(tmp_path / "2") as two:
        one.asked("x", {"a": 1})
        one.answered("x", 201, order="id-1")
        two.asked("y", {"b": 2})
        two.answered("y", 409, short=["b"])
        two.asked("z", {"a": 1})
        two.unknown("z", "time-out")
    story = journal.read([tmp_path / "1", tmp_path / "2"])
    assert story.baskets == {"x": {"a": 1}, "y": {"b": 2}, "z": {"a": 1}}
    assert (story.orders, story.refused, story.unknown) == ({"x": {"id-1"}}, {"y": ["b"]}, {"z"})


def test_a_torn_last_line_was_never_reported(tmp_path):
    """A client killed in the middle of a write leaves half a line: its buyer counts as unknown."""
    path = tmp_path / "journal"
    with Journal(path) as book:
        book.asked("x", {"a": 1})
    with path.open("a") as file:
        file.write('{"answered": "x", "stat')
    assert journal.read([path]).unknown == {"x"}


def test_a_buyer_who_asked_and_heard_nothing_is_unknown(tmp_path):
    """A client killed before it heard: whether it has an order isn't known."""
    with Journal(tmp_path / "journal") as book:
        book.asked("x", {"a": 1})
    assert journal.read([tmp_path / "journal"]).unknown == {"x"}


@pytest.mark.parametrize(
    ("status", "data", "answered"),
    [
        (201, {"id": "7"}, {"status": 201, "order": "7"}),
        (200, {"id": "7"}, {"status": 201, "order": "7"}),
        (409, {"type": "/problems/#sold-out", "shortages": [{"sku": "a"}]}, {"status": 409, "short": ["a"]}),
        (503, {"type": "/problems/#busy"}, {"status": 503}),
        (503, {"type": "/problems/#outcome-unknown"}, None),
        (503, {}, None),
        (500, {}, None),
        (409, {"type": "/problems/#in-progress"}, None),
    ],
)
def test_only_a_clear_answer_settles_an_order(status, data, answered):
    """An answer that doesn't say what became of the order leaves it unknown."""
    assert journal.verdict(status, data) == answered


class Scripted:
    """A server that answers each connection's requests from a list; None hangs up instead."""

    def __init__(self, *replies):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self.listener.getsockname()[:2])
        self.requests = []
        self.replies = list(replies)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        """Answer until the list is used up."""
        while self.replies:
            connection, _ = self.listener.accept()
            with connection:
                self.answer(connection)

    def answer(self, connection):
        """Answer on one connection until it is to be hung up."""
        while self.replies:
            request = connection.recv(65536)
            if not request:  # a buyer who was kept waiting for a second has come back on a new connection
                return
            self.requests.append(request)
            reply = self.replies.pop(0)
            if reply is None:
                return
            for piece in reply if isinstance(reply, tuple) else (reply,):
                connection.sendall(piece)

    def close(self):
        """End it."""
        self.thread.join(60)
        self.listener.close()


def reply(status, data):
    """Return the bytes of an answer."""
    body = json.dumps(data).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


ORDER = reply(201, {"id": "7"})
BUSY = reply(503, {"type": "/problems/#busy"})


def visit(tmp_path, *replies, tries):
    """Let one buyer meet these replies; return status, story and requests."""
    server = Scripted(*replies)
    with Journal(tmp_path / "journal") as book, Wire(server.address, 5) as wire:
        book.asked("key", {"mug": 1})
        status = buy(wire, book, "key", {"mug": 1}, tries=tries)
    server.close()
    return status, journal.read([tmp_path / "journal"]), server.requests


def test_a_reply_in_pieces_is_read_whole(tmp_path):
    """Head and body may come in any pieces."""
    status, story, _ = visit(tmp_path, tuple(ORDER[i : i + 5] for i in range(0, len(ORDER), 5)), tries=1)
    assert (status, story.orders) == (201, {"key": {"7"}})


def test_a_buyer_with_a_key_asks_again_with_the_same_key(tmp_path):
    """After a hang-up the same key and basket are sent again, until the order's fate is known."""
    status, story, requests = visit(tmp_path, None, BUSY, ORDER, tries=5)
    assert (status, story.orders, story.unknown) == (201, {"key": {"7"}}, set())
    assert len(requests) == 3
    assert all(b"Idempotency-Key: key\r\n" in request for request in requests)


def test_a_buyer_without_a_key_asks_once(tmp_path):
    """A second try could be a second order; the first one's fate stays unknown."""
    status, story, requests = visit(tmp_path, None, tries=1)
    assert (status, story.unknown, len(requests)) == (UNKNOWN, {"key"}, 1)


def test_busy_is_an_answer(tmp_path):
    """Busy at the first try settles it: nothing was ordered."""
    status, story, _ = visit(tmp_path, BUSY, tries=5)
    assert (status, story.unknown) == (503, set())


def test_faults_are_spread_over_the_run():
    """A list of names becomes moments; none is no fault; another name is refused."""
    assert [(fault.name, fault.at) for fault in faults.parse("kill, flush,kill")] == [
        ("kill", 0.25),
        ("flush", 0.5),
        ("kill", 0.75),
    ]
    assert faults.parse("none") == []
    with pytest.raises(ValueError, match="unknown fault 'fire'"):
        faults.parse("kill,fire")


VISITS = [Visit(0.0, 0.01, 201), Visit(0.1, 0.9, 201), Visit(0.2, 2.0, 409), Visit(0.3, 0.1, UNKNOWN)]


def test_a_stall_shows_in_the_moment_at_which_it_was_felt():
    """Latency belongs to the moment at which the buyer was due, the answer to the moment at which it came."""
    lines = figures.over_time(VISITS, 1.0, step=0.5)
    assert lines["p99"][0] == 2000
    assert lines["refused"] == [0, 0, 0, 0, 2]
    assert sum((rate or 0.0) * 0.5 for kind in figures.KINDS for rate in lines[kind]) == len(VISITS)


def test_the_summary_counts_each_visit_once():
    """Counts by kind add up, and percentiles are ranks."""
    summary = figures.summary(VISITS, 2.0)
    assert [summary[kind] for kind in figures.KINDS] == [2, 1, 0, 1]
    assert (summary["orders_per_second"], summary["p50_ms"], summary["p99_ms"]) == (1.0, 100, 2000)


def test_the_report_is_one_file_that_needs_no_network(tmp_path):
    """No address to fetch from, and nothing in the data can end its element."""
    run = {
        "name": "redis_lock",
        "keyed": True,
        "faults": [{"at": 0.5, "until": 1.7, "name": "kill", "text": "</script>"}],
        "locust": None,
        "acknowledged": 2,
        "orders": 2,
        "unknown": 1,
        "verdict": dict.fromkeys(figures.KINDS, 0) | {"exact": False, "details": ["<lost>"]},
        **figures.summary(VISITS, 1.0),
        "lines": figures.over_time(VISITS, 1.0),
    }
    run["verdict"] |= dict.fromkeys(("oversold", "undersold", "lost", "duplicated", "leaked"), 0)
    facts = {"taken_at": "now", "cpu": "c", "cores": 2, "load_before": [0.0], "python": "3", "commit": "x"}
    results = {
        "circumstances": facts | {"dirty": False},
        "parameters": {"rate": 50, "seconds": 1, "seed": 1},
        "runs": [run],
        "growth": [],
        "exact": False,
    }
    write(tmp_path / "report.html", results)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert page.count("</script>") == 2
    assert "&lt;lost&gt;" in page
    assert "back after 1.2 s" in page
    assert "NOT every strategy was exact" in page
