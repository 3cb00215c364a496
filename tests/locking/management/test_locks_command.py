"""`manage.py locks`: what it shows, what it breaks and for whom, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.core.management.color import color_style, no_style

from locking import Lease, LockLost, get_lock, get_semaphore, locked_transaction
from locking.core.handler import locks
from locking.inspection.heartbeat import WAITS, HeartbeatPublisher
from locking.inspection.held import holds_of
from locking.management.locks import output
from locking.management.locks.output import line as output_line
from locking.models import LockEvent
from tests import ROOT
from tests.locking.support.fenced_databases import SQLITE
from tests.support.processes import until
from tests.support.warm import WarmProcess

pytestmark = pytest.mark.django_db(transaction=True)


class Said:
    """What a call of the command printed, and how it ended."""

    def __init__(self, *arguments):
        out, err = StringIO(), StringIO()
        self.status: object = 0
        self.error = ""
        try:
            call_command("locks", *arguments, stdout=out, stderr=err, no_color=True)
        except SystemExit as ending:
            self.status = ending.code
        except CommandError as error:
            self.status, self.error = error.returncode, str(error)
        self.out, self.err = out.getvalue(), err.getvalue()

    @property
    def json(self):
        """The one line of JSON."""
        (line,) = self.out.splitlines()
        return json.loads(line)


def names(page):
    """The names of a page's rows."""
    return [row["name"] for row in page["rows"]]


@pytest.fixture
def three_held():
    """Two orders and a semaphore, taken in this order."""
    with get_lock("order:1"), get_lock("order:2"), get_semaphore("mail", permits=3):
        yield


# list and watch


@pytest.mark.usefixtures("three_held")
def test_a_list_has_a_row_a_hold():
    """The oldest first; how many there are goes to stderr, so that a pipe gets rows only."""
    said = Said("list")
    head, *rows = said.out.splitlines()
    assert head.split() == [column.heading for column in output.LISTED]
    assert [row.split()[:3] for row in rows] == [
        ["held", "order:1", "lock"],
        ["held", "order:2", "lock"],
        ["held", "mail", "semaphore"],
    ]
    assert said.err.strip() == "3 of 3 held"


@pytest.mark.usefixtures("three_held")
@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--prefix", "order:"], ["order:1", "order:2"]),
        (["--kind", "semaphore"], ["mail"]),
        (["--without", "order:"], ["mail"]),
        (["--search", "ord", "--limit", "1"], ["order:1"]),
        (["--state", "gone"], []),
        (["--longer-than", "3600"], []),
        (["--host", "nowhere"], []),
        (["--backend", "default", "--longer-than", "0"], ["order:1", "order:2", "mail"]),
    ],
)
def test_a_list_is_narrowed(options, found):
    """Each filter, as JSON."""
    page = Said("list", "--json", *options).json
    assert names(page) == found
    assert page["complete"]
    assert page["problems"] == []


def test_an_empty_list_says_why():
    """Nothing is held, or nothing that the filters find."""
    assert Said("list").err.strip() == "nothing is held"
    assert Said("waiting").err.strip() == "no lock has waiters"
    with get_lock("a"):
        assert Said("list", "--without", "a").err.strip() == "no held lock was found"


def test_a_name_cannot_speak_to_the_terminal():
    """Control characters in a name are shown, not obeyed."""
    with suppress(LockLost), get_lock("a\x1b[2Jb"):
        outputs = [
            Said("list").out,
            Said("show", "a\x1b[2Jb").out,
            Said("release", "a\x1b[2Jb", "--reason", "x", "--yes").out,
        ]
    assert all("a⟨U+001B⟩[2Jb" in each for each in outputs)
    assert not any("\x1b" in each for each in outputs)


def test_an_outage_is_seen_while_watching(backend_down):
    """An empty table would say that nothing is held."""
    said = Said("watch", "--backend", "down", "--times", "1")
    assert said.status == 69
    assert "unknown" in said.out.split()
    assert "Redis of the lock backend 'down' doesn't answer" in said.out


def test_a_backend_that_does_not_answer_is_reported(backend_down):
    """The others are listed all the same; the exit status says that it isn't all."""
    with get_lock("a"):
        said = Said("list")
    assert said.status == 69
    assert "a" in said.out.split()
    assert "backend down: Redis of the lock backend 'down' doesn't answer" in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--backend", "nosuch"], "LOCKING has no alias 'nosuch'"),
        (["list", "--longer-than", "soon"], "--longer-than: invalid seconds value: 'soon'"),
        (["list", "--limit", "-1"], "limit and older_than can't be negative: 0, -1"),
        (["list", "--limit", "some"], "--limit: invalid int value: 'some'"),
        (["list", "--state", "odd"], "invalid choice: 'odd'"),
        (["release", "a"], "--reason"),
        (["run", "a", "--wait", "3", "--", "true"], "--wait must come before the name"),
        (["run", "a"], "say what to run"),
        (["run", "--ttl", "0", "a", "--", "true"], "ttl must be between"),
        (["run", "--on-conflict", "999", "a", "--", "true"], "exit status from 0 to 255"),
        (["show", " "], "name can't be empty"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(arguments, message):
    """With the value and the reason, before anything is asked or started."""
    said = Said(*arguments)
    assert said.status in (1, 2)  # argparse's own refusals are Django's to number
    assert message in said.error


def test_watching_is_a_list_again_and_again():
    """As JSON a line each time."""
    with get_lock("a"):
        said = Said("watch", "--json", "--times", "2", "--every", "0")
    assert [names(json.loads(line)) for line in said.out.splitlines()] == [["a"], ["a"]]


def test_watching_without_a_terminal_prints_tables():
    """One below the other."""
    with get_lock("a"):
        said = Said("watch", "--times", "2", "--every", "0")
    assert [line.split()[0] for line in said.out.splitlines()] == ["STATE", "held", "STATE", "held"]


@pytest.mark.parametrize("times", ["0", "-1"])
def test_watching_no_times_ends_with_the_first_table(times):
    """It doesn't go on without end."""
    assert Said("watch", "--times", times, "--every", "0").out.count("STATE") == 1


class Terminal(StringIO):
    """A file that says it is one."""

    def isatty(self):
        """Claim so."""
        return True


ROWS = [("held", "[red]a[/red]"), ("gone", "订单:" + 200 * "7"), ("held", "b")]
COLOR = re.compile(r"\x1b\[[\d;]+m")


def table_on(out, style, **more):
    """What is written of a table."""
    output.print_table(OutputWrapper(out), (("STATE", "NAME"), ROWS), style, **more)
    return out.getvalue()


def test_a_terminal_gets_the_states_in_color(monkeypatch):
    """A name is text, whatever it looks like; what isn't a terminal gets no color."""
    monkeypatch.setenv("DJANGO_COLORS", "dark")
    shown = table_on(Terminal(), color_style(force_color=True))
    assert COLOR.findall(shown) == ["\x1b[32;1m", "\x1b[0m", "\x1b[31;1m", "\x1b[0m", "\x1b[32;1m", "\x1b[0m"]
    assert COLOR.sub("", shown) == table_on(StringIO(), color_style(force_color=True))
    assert "[red]a[/red]" in shown


def test_a_terminal_without_color_gets_none():
    """Django's `--no-color`, or a terminal that has none."""
    assert table_on(Terminal(), no_style()) == table_on(StringIO(), no_style())


def test_a_list_that_is_redrawn_fits_the_terminal(monkeypatch):
    """The first rows are seen, each in one line: what follows would push them out."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "4")
    shown = table_on(Terminal(), no_style(), redraw=True)
    assert shown.startswith(output.CLEAR)
    assert [len(line) for line in shown.removeprefix(output.CLEAR).splitlines()] == [11, 19, 40]


# show


def test_a_free_lock_is_shown_as_free():
    """And the exit status says so to a script."""
    said = Said("show", "a")
    assert said.status == 1
    assert said.out.splitlines() == [
        output_line("lock", "a"),
        output_line("key", "a on backend default"),
        output_line("state", "free"),
    ]


def test_everything_that_is_known_of_a_lock_is_shown():
    """Its holder, its time, its token, and the row by which the database knows it."""
    with locked_transaction("a", fenced=True) as lease:
        pass
    with get_lock("a") as held:
        said = Said("show", "a")
        picture = Said("show", "a", "--json").json
    assert f"owner               {held.owner}" in said.out
    assert f"fencing token       {held.fencing_token}" in said.out
    assert f"fence               token {lease.fencing_token} of {lease.owner}" in said.out
    assert picture["fence"]["token"] == lease.fencing_token
    assert [hold["owner"] for hold in picture["holds"]] == [held.owner]


def test_a_backend_that_cannot_list_still_tells_the_owner(monkeypatch):
    """The message names what is missing."""
    backend = locks["default"]

    def refuse(**_):
        raise backend.unsupported("list what is held")

    monkeypatch.setattr(backend, "held", refuse)
    with get_lock("a") as lease:
        said = Said("show", "a")
    assert f"owner               {lease.owner}" in said.out
    assert "can't list what is held: only its owner is known" in said.err


def test_a_backend_that_is_down_cannot_be_asked(backend_down):
    """69, with the backend's own words."""
    said = Said("show", "--backend", "down", "a")
    assert said.status == 69
    assert "doesn't answer" in said.error


# release


def answering(monkeypatch, answer):
    """Answer the question, or do something before that."""
    monkeypatch.setattr("builtins.input", lambda _question: answer() if callable(answer) else answer)


def test_a_hold_is_broken_after_a_yes(monkeypatch):
    """With the reason in the audit."""
    answering(monkeypatch, "y")
    lease = get_lock("a").acquire()
    said = Said("release", "a", "--reason", "worker 7 was killed")
    assert said.status == 0
    assert "broken" in said.out
    assert f"owner               {lease.owner}" in said.err
    assert not get_lock("a").locked()
    event = LockEvent.objects.get()
    assert (event.action, event.reason, event.owner) == ("force_release", "worker 7 was killed", lease.owner)
    assert "worker 7 was killed" in Said("show", "a").out


@pytest.mark.parametrize("answer", ["", "n", "yesterday"])
def test_anything_but_yes_is_no(monkeypatch, answer):
    """Nothing is done, and nothing audited."""
    answering(monkeypatch, answer)
    with get_lock("a") as lease:
        said = Said("release", "a", "--reason", "a test")
        lease.ensure_held()
        assert get_lock("a").locked()
    assert said.status == 1
    assert not LockEvent.objects.exists()


def test_no_terminal_counts_as_no(monkeypatch):
    """Without a terminal and without --yes."""

    def no_terminal():
        raise EOFError

    answering(monkeypatch, no_terminal)
    with get_lock("a"):
        assert Said("release", "a", "--reason", "a test").status == 1


def test_a_newer_holder_is_never_hit(monkeypatch):
    """While the operator thinks, the lock goes to another: that one keeps it."""
    first = get_lock("a").acquire()
    second = []

    def slowly():
        first.release()
        second.append(get_lock("a").acquire())
        return "y"

    answering(monkeypatch, slowly)
    said = Said("release", "a", "--reason", "a test")
    assert said.status == 1
    assert f"{first.owner} doesn't hold 'a' any more" in said.err
    (hold,) = holds_of("a")
    assert hold.owner == second[0].owner
    second[0].release()


def test_a_script_names_the_owner_it_means():
    """Another's hold is left alone; --json tells what was done."""
    with get_lock("a"):
        said = Said("release", "a", "--reason", "a test", "--yes", "--owner", "another:1")
        assert (said.status, said.error) == (1, "'a' on 'default' isn't held by another:1")
    lease = get_lock("a").acquire()
    done = Said("release", "a", "--reason", "a test", "--yes", "--json", "--owner", lease.owner).json
    assert (done["done"], done["owner"]) == (True, lease.owner)


def test_one_of_several_holders_must_be_named():
    """A semaphore has more than one; the error lists them."""
    with ExitStack() as stack:
        semaphore = get_semaphore("mail", permits=2)
        owners = [stack.enter_context(semaphore).owner for _ in range(2)]
        said = Said("release", "mail", "--reason", "a test", "--yes")
        assert said.status == 2
        assert all(owner in said.error for owner in owners)


# release by filters

SEVERAL = ("release", "--prefix", "order:", "--reason", "worker 7 was killed")


def held_now():
    """The names of everything that is held."""
    return names(Said("list", "--json").json)


@pytest.mark.usefixtures("three_held")
def test_a_dry_run_shows_and_breaks_nothing():
    """One lock, or several."""
    said = Said(*SEVERAL, "--dry-run")
    assert (said.status, [row.split()[1] for row in said.out.splitlines()[1:]]) == (0, ["order:1", "order:2"])
    assert "held" in Said("release", "order:1", "--reason", "a test", "--dry-run").err
    assert held_now() == ["order:1", "order:2", "mail"]
    assert not LockEvent.objects.exists()


def test_several_are_broken_after_one_yes(monkeypatch):
    """Each with its row in the audit, and nothing that was not shown."""
    answering(monkeypatch, "y")
    leases = [get_lock(name).acquire() for name in ("order:1", "order:2", "mail")]
    said = Said(*SEVERAL)
    assert (said.status, held_now()) == (0, ["mail"])
    assert "order:1" in said.err
    assert "2 of 2 broken" in said.err
    assert sorted(LockEvent.objects.values_list("name", flat=True)) == ["order:1", "order:2"]
    leases[2].release()


@pytest.mark.usefixtures("three_held")
def test_several_stay_after_anything_but_yes(monkeypatch):
    """As with one."""
    answering(monkeypatch, "n")
    assert Said(*SEVERAL).status == 1
    assert held_now() == ["order:1", "order:2", "mail"]


def test_who_took_the_lock_meanwhile_keeps_it(monkeypatch):
    """What is broken was shown before the question, and is as it was shown after the answer."""
    first = get_lock("order:1").acquire()
    later: list[Lease] = []

    def slowly():
        first.release()
        later.extend((get_lock("order:1").acquire(), get_lock("order:3").acquire()))
        return "y"

    answering(monkeypatch, slowly)
    said = Said(*SEVERAL)
    assert (said.status, held_now()) == (1, ["order:1", "order:3"])
    assert "0 of 1 broken" in said.err
    for lease in later:
        lease.release()


@pytest.mark.usefixtures("three_held")
def test_a_state_chooses_too():
    """No process is gone, so there is nothing to do."""
    said = Said("release", "--prefix", "order:", "--state", "gone", "--reason", "a test", "--yes")
    assert (said.status, held_now()) == (1, ["order:1", "order:2", "mail"])


@pytest.mark.parametrize("arguments", [(), ("a", "--prefix", "a"), ("--prefix", "a", "--owner", "b:1")])
def test_one_lock_or_filters_must_be_meant(arguments):
    """Neither everything by an empty command line, nor both."""
    assert Said("release", "--reason", "a test", "--yes", *arguments).status == 2


@pytest.mark.parametrize("fenced_database", [SQLITE], indirect=True, ids=str)
def test_the_fence_is_advanced_where_it_is_said(fenced_database):
    """In the databases that are named, and in no other; a name that is none is refused."""
    refused = Said("release", "a", "--reason", "stuck", "--yes", "--database", "nowhere")
    assert "invalid choice: 'nowhere'" in refused.error
    lease = get_lock("a", fenced=True).acquire()
    assert Said("release", "a", "--reason", "stuck", "--yes", "--database", fenced_database).status == 0
    assert f"fence in {fenced_database!r}" in LockEvent.objects.get().details
    assert "'default'" not in LockEvent.objects.get().details
    with pytest.raises(LockLost):
        lease.release()


@pytest.mark.parametrize("verb", [("list",), ("watch", "--every", "0")], ids=" ".join)
def test_a_reader_that_has_left_is_no_error(verb: tuple[str, ...]) -> None:
    """As in `manage.py locks list | head -0`: no traceback, and the exit status that shells give for it."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        program = ["manage.py", "locks", *verb]
        with WarmProcess(program, stdout=pipe.fileno(), stderr=subprocess.PIPE) as process:
            _, errors = process.communicate(timeout=60)
    assert "Broken" not in errors
    assert process.returncode == 141, errors


def test_settings_may_be_named_after_the_verb() -> None:
    """`manage.py locks list --settings x` is what one types; Django reads it, and the verb lets it pass."""
    program = (sys.executable, "-m", "django", "locks", "list", "--json")
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [*program, "--settings", "tests.settings", "--pythonpath", "."],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert '"rows"' in done.stdout


# what isn't known, and who waits


def test_a_search_that_ended_early_is_no_success(monkeypatch):
    """The status and stderr say that not everything was looked at; the exact name is found all the same."""
    monkeypatch.setattr("locking.inspection.held.MOST_SEARCHED", 1)
    with get_lock("order:1"), get_lock("order:2"):
        said = Said("list", "--search", "nothing")
        found = Said("list", "--json", "--search", "order:2")
    assert said.status == 1
    assert "no held lock was found" in said.err
    assert "--search the exact name" in said.err
    assert names(found.json) == ["order:2"]
    assert found.json["complete"] is False


def test_an_outage_is_not_an_empty_queue(backend_down):
    """`waiting` ends with 69 and names the backend."""
    said = Said("waiting")
    assert said.status == 69
    assert "no waiter was found" in said.err
    assert "backend down:" in said.err
    assert Said("waiting", "--json").json["complete"] is False


def test_a_long_name_is_cut_in_the_middle():
    """The columns stay narrow, and both ends of the name are seen."""
    with get_lock("first:" + "x" * 700 + ":last"):
        (_, row) = Said("list").out.splitlines()
    assert "first:xx" in row
    assert "xx:last" in row
    assert len(row) < 300


@pytest.fixture
def one_waits(monkeypatch):
    """`order:7` is held, and another thread waits for it and has published that."""
    monkeypatch.setattr("locking.inspection.heartbeat.HELD_LONG", 0.0)
    monkeypatch.setattr("locking.inspection.heartbeat.PUBLISH_AFTER", 0.0)
    reporter = HeartbeatPublisher()

    def wait():
        with get_lock("order:7", wait=60):
            pass

    with get_lock("order:7", ttl=60):
        thread = threading.Thread(target=wait, name="worker-1")
        thread.start()
        until(lambda: len(WAITS) == 1, "it waits")
        reporter.beat()
        yield
    thread.join()
    reporter.deregister()


@pytest.mark.usefixtures("one_waits")
def test_it_says_who_waits():
    """`show` names the waiter, `waiting` the one that blocks it, and `top` puts the lock first."""
    shown = Said("show", "order:7").out
    assert re.search(r"^waits               \S+:worker-1 for ", shown, re.M)
    assert re.search(r"^release             lets \S+:worker-1 go on$", shown, re.M)
    assert Said("waiting", "--without", "order:").out == ""
    root, waiter = Said("waiting").out.splitlines()
    assert re.search(r" blocks 1 for \S+ \S+ with order:7", root)
    assert re.search(r"^  \S+:worker-1 waits \S+ \S+ for order:7", waiter)
    with get_lock("order:1"):
        assert Said("top", "--times", "1").out.splitlines()[1].split()[1] == "order:7"
