"""`manage.py locks`: see what is held, free it, run a command under a lock."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from locking.core.handler import DEFAULT_ALIAS, InvalidLockBackend
from locking.core.kinds import LABELS
from locking.exceptions import BackendError, LockError
from locking.inspection.admin_actions import force_release
from locking.inspection.columns import STATES, HeldLock, visible
from locking.inspection.held import Page, Problem, held_locks, known_waiters, wait_trees
from locking.keys.names import UNSET, check_wait
from locking.management.locks import output, running

NO, BAD_INPUT, NO_READER = 1, 2, 141  # the last as shells report SIGPIPE

EPILOG: Final = """
Exit status: 0 done; 1 there was nothing to show, or not everything could be looked at or released; 2 the
command line is invalid; 69 a backend doesn't answer; 130 stopped by Ctrl-C. `run` ends
as its command does; 75 others have the lock; 70 the lock was lost and the command was stopped; 126 and 127 it
could not be started; 128 and a signal's number when that ended it; 141 the reader of the output has gone.
"""


def seconds(text: str) -> float:
    """Return a number of seconds; argparse has this function's name in its message."""
    return check_wait(float(text)) or 0.0


Options = dict[str, dict[str, Any]]  # what `add_argument` takes, by the option

FLAG: Final = {"action": "store_true"}
SECONDS: Final = {"type": seconds, "metavar": "S"}
WHOLE: Final = {"type": int, "metavar": "N"}
TEXT: Final = {"default": "", "metavar": "TEXT"}

NAME: Final[Options] = {"name": {"help": "the lock's name, without the KEY_PREFIX"}}
WITHOUT: Final[Options] = {"--without": {**TEXT, "help": "no names that begin with it"}}
FILTERS: Final[Options] = {
    "--prefix": {**TEXT, "help": "only names that begin with it"},
    **WITHOUT,
    "--search": {**TEXT, "help": "only where name or holder has it"},
    "--state": {"default": "", "choices": STATES, "help": "only these"},
    "--kind": {"default": "", "choices": LABELS, "help": "only these"},
    "--host": {"default": "", "help": "only holders on this machine"},
    "--longer-than": {**SECONDS, "dest": "older_than", "default": 0.0, "help": "held for so many seconds"},
    "--limit": {**WHOLE, "default": 50, "help": "rows at most (50)"},
}
WATCH: Final[Options] = {
    "--every": {**SECONDS, "default": 2.0, "help": "seconds (2)"},
    "--times": {**WHOLE, "help": "end after so many"},
}
RELEASE: Final[Options] = {
    "name": {"nargs": "?", "help": "the lock's name, without the KEY_PREFIX; else filters"},
    **FILTERS,
    "--limit": {**WHOLE, "default": 100, "help": "holds at most (100)"},
    "--dry-run": {**FLAG, "help": "show what would be broken, and end"},
    "--reason": {"required": True, "help": "why; it is kept in the audit"},
    "--owner": {"help": "the owner that `show` printed: a newer one keeps the lock"},
    "--yes": {**FLAG, "help": "don't ask"},
    "--database": {
        "action": "append",
        "choices": connections,
        "help": "where the fence is advanced; repeatable",
    },
}
RUN: Final[Options] = {
    "--ttl": {**SECONDS, "help": "stop it after so many seconds at most"},
    "--wait": {**SECONDS, "default": UNSET, "help": "for the lock; 0: don't"},
    "--fenced": {**FLAG, "help": "a database checks the fencing token"},
    "--grace": {**SECONDS, "help": "from SIGTERM to SIGKILL (5)"},
    "--on-conflict": {**WHOLE, "default": running.CONTENDED, "help": "exit status (75)"},
    **NAME,
    "command": {"nargs": argparse.REMAINDER, "metavar": "-- COMMAND", "help": "what to run"},
}
VERBS: Final[dict[str, tuple[Any, ...]]] = {
    "list": ("what is held, the oldest first", FILTERS),
    "show": ("everything that is known of one lock", NAME),
    "release": ("break the hold of a lock, or of many", RELEASE),
    "watch": ("the list, redrawn every two seconds", FILTERS, WATCH),
    "run": ("run a command while holding a lock", RUN),
    "top": ("the locks with most waiters, redrawn every two seconds", FILTERS, WATCH),
    "waiting": ("who waits for whom, the one that blocks most first", WITHOUT),
}


class Command(BaseCommand):
    """Look after the locks of this project."""

    help = "See what is held, free it, run a command under a lock."
    requires_system_checks = ()  # an operator comes when something is broken

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = EPILOG.strip()
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for name, (text, *groups) in VERBS.items():
            verb: CommandParser = verbs.add_parser(name, help=text, description=text.capitalize() + ".")
            verb.add_argument("--backend", metavar="ALIAS", help="an alias in LOCKING")
            verb.add_argument("--json", action="store_true", help="print JSON")
            for option in ("--settings", "--pythonpath"):  # Django reads them anywhere; a verb must know
                verb.add_argument(option, default=argparse.SUPPRESS, help="as for any manage.py command")
            for option, settings in (each for group in groups for each in group.items()):
                verb.add_argument(option, **settings)

    def handle(self, *args: Any, **options: Any) -> None:
        """Do what the verb says; errors become messages and exit statuses."""
        verb: Callable[[dict[str, Any]], int] = getattr(self, f"_do_{options['verb']}")
        try:
            status = verb(options)
            self.stdout.flush()
        except (InvalidLockBackend, ValueError) as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from error
        except DatabaseError as error:
            what = "the database can't be asked, and without its audit nothing is done"
            raise CommandError(f"{what}: {error}", returncode=running.UNAVAILABLE) from error
        except LockError as error:
            status = running.UNAVAILABLE if isinstance(error, BackendError) else NO
            raise CommandError(str(error), returncode=status) from error
        except KeyboardInterrupt:
            status = 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
            status = NO_READER
        if status:
            sys.exit(status)

    def _do_list(self, options: dict[str, Any]) -> int:
        redraw, order = options["verb"] != "list", "waiters" if options["verb"] == "top" else "age"
        for number in count(1):
            page = _page_of(options, order)
            if options["json"]:
                self._print_json(page.as_dict())
            else:
                cells = output.cells_of(page.rows, page.problems if redraw else ())
                output.print_table(self.stdout, cells, self.style, redraw=redraw)
                if not redraw:
                    self._print_rest(page, options)
            if not redraw or (options["times"] is not None and number >= options["times"]):
                break
            time.sleep(options["every"])
        return _status_of(page)

    _do_watch = _do_top = _do_list

    def _print_json(self, fields: dict[str, Any], out: OutputWrapper | None = None) -> None:
        (out or self.stdout).write(json.dumps(fields, ensure_ascii=False, default=str))
        self.stdout.flush()

    def _print_rest(self, page: Page, options: dict[str, Any]) -> None:
        """Print everything but the table's rows to stderr: a pipe gets rows only."""
        if page.total:
            found = f"{len(page.rows)} of {'' if page.complete else 'at least '}{page.total} held"
        elif page.complete and not _is_narrowed(options) and not options["without"]:
            found = "nothing is held"
        else:
            found = "no held lock was found"
        self.stderr.write(found, self.style.NOTICE)
        if not page.searched_all:
            self.stderr.write("looked at the oldest 5,000; give --prefix, or --search the exact name")
        self._print_problems(page.problems)

    def _print_problems(self, problems: Sequence[Problem]) -> None:
        for problem in problems:
            self.stderr.write(f"backend {problem.backend}: {problem.message}")

    def _do_waiting(self, options: dict[str, Any]) -> int:
        found, problems = known_waiters(options["without"])
        if alias := options["backend"]:
            found = [each for each in found if each.backend == alias]
        if options["json"]:
            shown = {"waiters": [asdict(each) for each in found], "complete": not problems}
            self._print_json({**shown, "problems": [asdict(problem) for problem in problems]})
        else:
            for line in output.lines_of_trees(wait_trees(found)):
                self.stdout.write(line)
            about = " at least" if problems else ""
            none = "no waiter was found" if problems else "no lock has waiters"
            self.stderr.write(f"{len(found)}{about} wait" if found else none, self.style.NOTICE)
            self._print_problems(problems)
        return _status_of(Page([], 0, problems=problems))

    def _do_show(self, options: dict[str, Any]) -> int:
        picture = output.picture_of(options["name"], options["backend"])
        if options["json"]:
            self._print_json(picture.as_dict())
        else:
            for line in output.lines_of(picture):
                self.stdout.write(visible(line))
            for line in picture.unknown:
                self.stderr.write(line)
        return 0 if picture.holds else NO

    def _do_release(self, options: dict[str, Any]) -> int:
        if _is_narrowed(options) == (options["name"] is not None):
            raise ValueError("name one lock, or choose several by --prefix, --state and the like, not both")
        return self._release_several(options) if options["name"] is None else self._release_one(options)

    def _release_several(self, options: dict[str, Any]) -> int:
        """Break what the filters find, was shown, and still is as it was shown after the answer."""
        if options["owner"]:
            raise ValueError("--owner belongs to one lock: name it")
        page = _page_of(options)
        out = self.stdout if options["dry_run"] else self.stderr
        output.print_table(out, output.cells_of(page.rows), self.style)
        self._print_rest(page, options)
        if options["dry_run"] or not page.rows:
            return _status_of(page) or (0 if page.rows else NO)
        if not self._is_confirmed(f"Break these {len(page.rows)} holds?", options):
            return NO
        shown = {(hold.backend, hold.key, hold.owner) for hold in page.rows}
        still = [hold for hold in _page_of(options).rows if (hold.backend, hold.key, hold.owner) in shown]
        done = [self._break(hold, options) for hold in still].count(True)
        self.stderr.write(f"{done} of {len(page.rows)} broken")
        return 0 if done == len(page.rows) else NO

    def _release_one(self, options: dict[str, Any]) -> int:
        picture = output.picture_of(options["name"], options["backend"])
        holds = [hold for hold in picture.holds if options["owner"] in (None, hold.owner)]
        if not holds:
            whose = f" by {options['owner']}" if options["owner"] else ""
            raise CommandError(f"{picture.name!r} on {picture.backend!r} isn't held{whose}", returncode=NO)
        if len(holds) > 1:
            owners = ", ".join(hold.owner for hold in holds)
            raise ValueError(f"{picture.name!r} has {len(holds)} holders; say which with --owner: {owners}")
        (hold,) = holds
        for line in output.lines_of_hold(hold) if options["dry_run"] or not options["yes"] else ():
            self.stderr.write(visible(line))
        if options["dry_run"]:
            return 0
        return 0 if self._is_confirmed("Break it?", options) and self._break(hold, options) else NO

    def _is_confirmed(self, question: str, options: dict[str, Any]) -> bool:
        if options["yes"]:
            return True
        self.stderr.write("Breaking a lock doesn't stop its holder: only its fenced writes are refused.")
        with suppress(EOFError):  # no terminal counts as no
            if input(f"{question} [y/N] ").strip().lower() in ("y", "yes"):
                return True
        self.stderr.write("nothing was done")
        return False

    def _break(self, hold: HeldLock, options: dict[str, Any]) -> bool:
        databases = options["database"] or [DEFAULT_DB_ALIAS]
        result = force_release(hold, reason=options["reason"], databases=databases)
        if options["json"]:
            fields = {"done": result.done, "name": hold.name, "owner": hold.owner}
            self._print_json({**fields, "details": result.event.details})
        elif result.done:
            self.stdout.write(f"{visible(hold.name)} broken; {result.event.details}")
        else:
            self.stderr.write(f"{hold.owner} doesn't hold {hold.name!r} any more: nothing was done")
        return result.done

    def _do_run(self, options: dict[str, Any]) -> int:
        same = {name: options[name] for name in ("name", "ttl", "wait", "fenced", "grace", "on_conflict")}
        command: list[str] = options["command"]
        if command[:1] == ["--"]:
            command = command[1:]
        elif command and command[0].startswith("-"):  # what looks like an option there was meant for us
            name = command[0]
            raise ValueError(f"{name} must come before the name: write locks run [options] NAME -- command")
        backend = options["backend"] or DEFAULT_ALIAS
        report = running.run(running.Job(command=command, backend=backend, **same))
        if options["json"]:
            self._print_json({"name": options["name"], **asdict(report)}, self.stderr)
        elif report.message:
            self.stderr.write(report.message)
        return report.status


NARROWING: Final = ("prefix", "search", "state", "kind", "host", "older_than")


def _is_narrowed(options: dict[str, Any]) -> bool:
    return any(options[name] for name in NARROWING)


def _page_of(options: dict[str, Any], order: str = "age") -> Page:
    chosen = {name: options[name] for name in (*NARROWING, "without", "limit")}
    return held_locks(options["backend"], **chosen, order=order)


def _status_of(page: Page) -> int:
    """A backend that doesn't answer is a failure, one that can't list none; a short search is no success."""
    if any(not problem.unsupported for problem in page.problems):
        return running.UNAVAILABLE
    return 0 if page.searched_all else NO
