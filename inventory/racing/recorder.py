"""What a buyer reads and writes, seen at its database connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from inventory.racing.meeting import Meeting
from inventory.racing.statements import Statement, parse

MOST_ROWS: Final = 50
"""Rows of one answer that are looked at."""


class Event(NamedTuple):
    """A statement of one buyer: when, its text, and the rows that it read as (column, value) pairs."""

    moment: float
    sql: str
    statement: Statement
    rows: tuple[tuple[tuple[str, str], ...], ...] = ()


class Rows:
    """A cursor that notes the rows which pass; all else is the cursor's."""

    def __init__(self, cursor: Any, seen: Callable[[list[Any]], None]) -> None:
        self._cursor, self._seen = cursor, seen

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self._cursor, name)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows."""
        for row in self._cursor:
            self._seen([row])
            yield row

    def fetchone(self) -> Any:
        """Return the next row."""
        row = self._cursor.fetchone()
        self._seen([row] if row is not None else [])
        return row

    def fetchmany(self, *size: int) -> Any:
        """Return the next rows."""
        rows = self._cursor.fetchmany(*size)
        self._seen(list(rows))
        return rows

    def fetchall(self) -> Any:
        """Return the rows that are left."""
        rows = self._cursor.fetchall()
        self._seen(list(rows))
        return rows


class Recorder:
    """Notes the statements of one buyer, and leads it to the meeting before it writes."""

    def __init__(self, buyer: int, meeting: Meeting) -> None:
        self._buyer, self._meeting = buyer, meeting
        self._written: set[str] = set()
        self.events: list[Event] = []

    def __call__(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Execute a statement; Django calls this for each."""
        text = str(sql)
        statement = parse(text, None if many else params)
        if statement.writes and statement.writes not in self._written:
            self._written.add(statement.writes)
            self._meeting.attend(self._buyer)
        self._meeting.touch()
        place = len(self.events)
        self.events.append(Event(time.monotonic(), text, statement))
        if statement.reads:
            self._watch(context["cursor"], place)
        try:
            return execute(sql, params, many, context)
        finally:
            self._meeting.touch()

    def _watch(self, wrapper: Any, place: int) -> None:
        inner = wrapper.cursor._cursor if isinstance(wrapper.cursor, Rows) else wrapper.cursor

        def seen(rows: list[Any]) -> None:
            names = [str(column[0]) for column in inner.description or ()]
            event = self.events[place]
            new = [
                tuple(zip(names, map(str, row), strict=False)) for row in rows[: MOST_ROWS - len(event.rows)]
            ]
            self.events[place] = event._replace(moment=time.monotonic(), rows=(*event.rows, *new))

        wrapper.cursor = Rows(inner, seen)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Have this thread's connections report to `recorder`."""
    from django.db import connections

    with ExitStack() as stack:
        for connection in connections.all():
            stack.enter_context(connection.execute_wrapper(recorder))
        yield
