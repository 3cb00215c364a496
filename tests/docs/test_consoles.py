"""What the pages say that a command prints is what it prints; `…` stands for what differs from run to run."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from locking import LockDeadlock, get_lock
from locking.exceptions import BlockedWaiter
from orders.catalog.products import create_product
from orders.lab.race import table
from orders.lab.strategies import STRATEGIES
from tests.docs.pages import Block, all_blocks
from tests.docs.walkthrough import Step, steps_of

COMMAND = "docs/library/how-to/held-locks.md"
AUDIT = "docs/shop/how-to/audit.md"

COMPARED = {
    ("README.md", "$ python manage.py oversell --strategy all --buyer"),
    ("docs/library/how-to/held-locks.md", '$ manage.py locks release order:42 --reason "worke'),
    ("docs/library/how-to/deadlocks.md", "lock 'stock:mug' on backend 'default' not acquired"),
    ("docs/library/how-to/metrics.md", '{"status": "failing", "checks": {'),
    ("docs/library/reference/overview.md", "LockError"),
    ("docs/library/reference/responses.md", "{"),
    ("docs/shop/how-to/audit.md", "$ python manage.py audit_orders"),
    ("docs/shop/reference/http.md", "$ curl -i http://127.0.0.1:8000/checkout/ -H 'Cont"),
    ("docs/shop/tutorial/lab.md", "$ printf aabbaaaabbbb | python manage.py oversell "),
}
"""Page and first line of every output that this module or `test_names` compares."""

BUYERS = 40
"""Of the race on the README."""

pytestmark = pytest.mark.django_db(transaction=True)


def block(page: str, first: str) -> Block:
    """Return the one block of a page that begins so."""
    (found,) = [each for each in all_blocks() if each.page == page and each.first_line.startswith(first)]
    return found


def steps(page: str, first: str) -> list[Step]:
    return steps_of(block(page, first).text)


def printed_by(*arguments: str) -> str:
    """Return what a command of manage.py writes to a terminal."""
    out = StringIO()
    with suppress(SystemExit):
        call_command(*arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def test_a_release_shows_the_hold_and_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`locks release` shows what it would break, and asks."""
    (step,) = steps(COMMAND, "$ manage.py locks release order:42")
    asked: list[str] = []

    def no(question: str) -> str:
        asked.append(question)
        return "n"

    monkeypatch.setattr("builtins.input", no)
    with get_lock("order:42"):
        printed = printed_by("locks", "release", "order:42", "--reason", "worker 7 was killed")
    shown = printed.removesuffix("nothing was done\n") + asked[0].strip() + "\n"
    assert step.shown(shown), shown


def test_the_audit_lists_the_laws() -> None:
    """`audit_orders` prints a line for each invariant."""
    create_product("mug", on_hand=3)
    (step,) = steps(AUDIT, "$ python manage.py audit_orders")
    assert step.shown(printed_by("audit_orders"))


def test_the_lab_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The keys of the page lead two buyers to the oversell that it shows."""
    (step,) = steps("docs/shop/tutorial/lab.md", "$ printf")
    reading, writing = os.pipe()
    os.write(writing, step.command.split()[1].encode())
    os.close(writing)
    with os.fdopen(reading) as keys:
        monkeypatch.setattr(sys, "stdin", keys)
        printed_by("oversell", "--step", "--strategy", "lost_update")
    assert step.shown(printed := capsys.readouterr().out), printed


def test_a_checkout_over_http(client: Client) -> None:
    """The request of the page is answered as it says."""
    (step,) = steps("docs/shop/reference/http.md", "$ curl")
    create_product("mug", on_hand=3)
    body = re.search(r"-d '(.*)'", step.expected)
    assert body is not None
    answer = client.post("/checkout/", body[1], content_type="application/json")
    said = f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}\nLocation: {answer['Location']}\n"
    expected = step.expected.partition("\n")[2]
    assert re.sub(r"[0-9a-f-]{36}", "ID", said) == re.sub(r"[0-9a-f-]{36}", "ID", expected)


def test_the_words_of_a_deadlock() -> None:
    """The error of the page is what LockDeadlock says."""
    circle = (
        BlockedWaiter("web-1:812:Thread-3", ("order:42",), "stock:mug", 0.0),
        BlockedWaiter("web-2:97:MainThread", ("stock:mug",), "order:42", 0.0),
    )
    error = LockDeadlock("stock:mug", waited=1.262, backend="default", circle=circle)
    assert " ".join(block("docs/library/how-to/deadlocks.md", "lock '").text.split()) == str(error)


def test_the_answer_of_a_locked_view(rf: Any) -> None:
    """The problem on the page has the members, and the words, of a real answer."""
    from locking import LockNotAcquired
    from locking.transactions.responses import conflict_response

    error = LockNotAcquired("order:42", waited=0.0, backend="default", retry_after=29.4)
    answer = conflict_response(rf.get("/"), error)
    assert json.loads(block("docs/library/reference/responses.md", "{").text) == json.loads(answer.content)


def test_the_answer_of_readyz(rf: Any) -> None:
    """The health view's answer has the form that the page shows."""
    from locking.contrib.health import readiness

    answer = json.loads(readiness(databases=["default"], locks_on=["default"])(rf.get("/")).content)
    shown = json.loads(block("docs/library/how-to/metrics.md", '{"status"').text)
    assert answer.keys() == shown.keys()
    assert answer["checks"].keys() == shown["checks"].keys()


def test_the_table_of_the_readme() -> None:
    """The excerpt of a race has columns and verdicts as the command prints them, and its sums are right."""
    (head, _, *lines) = [
        line for line in steps("README.md", "$ python")[0].expected.splitlines() if line.strip()
    ]
    titles = re.split(r"  +", head.strip())
    shown = [dict(zip(titles, re.split(r"  +", line.strip()), strict=True)) for line in lines]
    assert set(titles) <= {column.heading for column in table.COLUMNS}
    for row in shown:
        strategy = STRATEGIES[row["strategy"].partition("@")[0]]
        sold, stock = map(int, row["sold"].split(" of "))
        assert int(row["oversold"]) == max(sold - stock, 0), row
        assert int(row["unaccounted"]) == stock - sold - int(row["left"]), row
        assert sold + int(row["refused"]) == BUYERS, row
        exact = row["label"] == "sound"
        assert exact == (strategy.sound and "@" not in row["strategy"]), row
        assert row["verdict"] == ("exact" if exact else "shown broken"), row
