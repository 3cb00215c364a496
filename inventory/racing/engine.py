"""Runs a race: many buyers, each in a thread with connections of its own, spread over processes."""

from __future__ import annotations

import inspect
import multiprocessing
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from inventory.racing.crowd import fork, race_threads
from inventory.racing.meeting import Meeting
from inventory.racing.recorder import Recorder, recording
from inventory.racing.result import Buyer, Race

START_SECONDS: Final = 120.0
Sell = Callable[..., Any]


class RaceError(Exception):
    """The race can't be held as it was asked for."""


def race(
    sell: Sell | str,
    *,
    buyers: int = 40,
    stock: int | Callable[[], int] = 10,
    sold: Callable[[Any], Any] | None = None,
    data: dict[str, Any] | None = None,
    processes: int | None = None,
) -> Race:
    """Let `buyers` buy at the same moment, and return what was sold.

    Args:
        sell: a function that makes one sale and returns something true, or returns something false or raises
            if it refuses. It is called with the buyer's number if it takes an argument. Or the path of a URL,
            to which each buyer posts `data` with a client of its own; a status below 400 is a sale.
        buyers: how many, each for one unit.
        stock: units that there are; or a function that counts them, asked before and after the race, so that
            sales which leave no trace in the stock are found, too.
        sold: is given what `sell` returned, or the response, and says whether it was a sale.
        data: the form that is posted to a URL.
        processes: over which the buyers are spread; two where the system can fork and the database isn't in
            memory, because a lock inside one process would hide the race.

    Raises:
        RaceError: the race can't be held; the text says why and what to do.
    """
    action = _posting(sell, data) if isinstance(sell, str) else _called(sell)
    _demand(buyers, stock)
    processes = min(buyers, processes or (2 if _can_fork() else 1))
    if processes > 1 and not _can_fork():
        raise RaceError(
            f"processes={processes}: this system can't fork, or the database lives in memory, where another "
            "process doesn't see it. Use processes=1, or a database on disk or a server."
        )
    count = stock if callable(stock) else None
    before = stock() if callable(stock) else stock
    found = _run(action, sold or was_sold, buyers, processes)
    after = count() if count else None
    return Race(tuple(sorted(found)), before, after, processes)


def was_sold(answer: Any) -> bool:
    """Return whether an answer is a sale: a response with a status below 400, or another true value."""
    status = getattr(answer, "status_code", None)
    return status < 400 if isinstance(status, int) else bool(answer)


def _called(sell: Sell) -> Sell:
    try:
        inspect.signature(sell).bind(1)
    except TypeError:
        return lambda buyer: sell()
    except ValueError:  # a built-in without a signature
        pass
    return sell


def _posting(path: str, data: dict[str, Any] | None) -> Sell:
    def post(buyer: int) -> Any:
        from django.test import Client

        return Client(raise_request_exception=False).post(path, data or {})

    return post


def _demand(buyers: int, stock: Any) -> None:
    from django.db import connections

    if buyers < 2:
        raise RaceError(f"buyers={buyers}: one buyer can't race; use at least two.")
    if not callable(stock) and (not isinstance(stock, int) or stock < 0):
        raise RaceError(f"stock={stock!r}: give the units that there are, or a function that counts them.")
    for connection in connections.all():
        if connection.in_atomic_block:
            raise RaceError(
                f"the connection {connection.alias!r} is inside a transaction, which the buyers' own "
                "connections can't see. Commit first; under pytest use "
                "@pytest.mark.django_db(transaction=True)."
            )


def _can_fork() -> bool:
    from django.db import connections

    in_memory = any(
        getattr(connection, "is_in_memory_db", lambda: False)() for connection in connections.all()
    )
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin" and not in_memory


def _run(action: Sell, sold: Callable[[Any], Any], buyers: int, processes: int) -> list[Buyer]:
    context = multiprocessing.get_context("fork" if processes > 1 else None)
    meeting, start = Meeting(context, buyers), context.Barrier(buyers)
    shares = [range(first, buyers, processes) for first in range(processes)]

    def share(process: int) -> list[Buyer]:
        """Have the buyers of one process buy, each in a thread."""
        return race_threads(
            [partial(_buy, action, sold, number, meeting, start) for number in shares[process]]
        )

    if processes == 1:
        return share(0)
    pipes = [context.Pipe(duplex=False) for _ in shares]

    def run(process: int) -> None:
        for other, (_, sender) in enumerate(pipes):
            if other != process:  # so that the death of one is heard while the others go on
                sender.close()
        pipes[process][1].send(share(process))

    children = fork(run, processes)
    for _, sender in pipes:
        sender.close()
    try:
        return [buyer for receiver, _ in pipes for buyer in _received(receiver)]
    finally:
        for child in children:
            child.join(5)
            child.kill()


def _received(pipe: Any) -> list[Buyer]:
    try:
        found: list[Buyer] = pipe.recv()
    except EOFError:
        raise RaceError("a process of the race ended before its buyers did; see its output above.") from None
    return found


def _buy(action: Sell, sold: Callable[[Any], Any], number: int, meeting: Meeting, start: Any) -> Buyer:
    """Buy once, in a thread of its own; an error is a refusal, and is counted by its text."""
    recorder, success, refusal = Recorder(number, meeting), False, ""
    try:
        start.wait(START_SECONDS)
        meeting.touch()
        with recording(recorder):
            answer = action(number)
        success = bool(sold(answer))
        refusal = "" if success else f"returned {_short(answer)}"
    except threading.BrokenBarrierError:
        refusal = "did not start"
    except Exception as error:  # whatever the team's code raises
        refusal = _short(f"{type(error).__name__}: {error}")
    finally:
        meeting.leave(number)
    return Buyer(number + 1, success, refusal, tuple(recorder.events))


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:100]
