"""The race on a terminal: a bar a strategy while it runs, then one table, then a sentence each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from orders.lab.race.explain import explain
from orders.lab.race.plan import Plan, Variant
from orders.lab.race.result import Result
from orders.lab.strategies import STRATEGIES

WIDTH_WITHOUT_TERMINAL = 150


@dataclass(frozen=True)
class Column:
    """A column of the table; the narrower the terminal, the fewer columns.

    Args:
        heading: above it.
        cell: what it says of a result.
        rank: 0 always stays; of the others the highest goes first.
    """

    heading: str
    cell: Callable[[Result], str]
    rank: int = 0
    text: bool = False


COLUMNS = (
    Column("strategy", lambda r: r.name, text=True),
    Column("label", lambda r: "sound" if r.sound else "broken", rank=5, text=True),
    Column("sold", lambda r: f"{r.sold} of {r.initial}"),
    Column("left", lambda r: str(r.left), rank=1),
    Column("oversold", lambda r: str(r.oversold), rank=4),
    Column("unaccounted", lambda r: str(r.unaccounted)),
    Column("refused", lambda r: str(r.refused), rank=6),
    Column("retries", lambda r: str(r.retries), rank=7),
    Column("errors", lambda r: str(r.errors), rank=4),
    Column("p50 ms", lambda r: f"{r.p50_ms:.0f}", rank=8),
    Column("p95 ms", lambda r: f"{r.p95_ms:.0f}", rank=2),
    Column("p99 ms", lambda r: f"{r.p99_ms:.0f}", rank=9),
    Column("orders/s", lambda r: f"{r.orders_per_second:.0f}", rank=3),
    Column("verdict", lambda r: word(r), text=True),
)


def word(result: Result) -> str:
    """Return the verdict in at most two words; the explanation is below the table."""
    if result.kept:
        return "exact" if result.sound else _tries(result.tries)
    return "NOT EXACT" if result.sound else "NOT SHOWN"


def make_console(*, no_color: bool, force_color: bool, file: object = None, stderr: bool = False) -> Console:
    """Return a console for the output: a terminal, a pipe, NO_COLOR, Django's color options."""
    console = Console(
        file=file,  # type: ignore[arg-type]
        stderr=stderr,
        no_color=no_color or None,
        force_terminal=True if force_color else None,
        highlight=False,
    )
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_WITHOUT_TERMINAL
    return console


def print_results(
    console: Console, plan: Plan, results: Sequence[Result], absent: Mapping[str, str] | None = None
) -> None:
    """Print the table, then what went wrong and why the fix holds, and who could not take part."""
    console.print(_title(plan), style="bold")
    console.print(_fitting(console, results))
    console.print(
        "unaccounted = initial - sold - left; latency is that of the buyers who got one, retries included.\n"
    )
    for result in results:
        console.print(Text(f"{result.name}: {word(result)}", style=_style(result)))
        console.print(Padding(Text(explain(result, STRATEGIES[result.strategy])), (0, 0, 0, 4), expand=False))
    for name, reason in (absent or {}).items():
        console.print(Text(f"{name}: not raced, {reason}", style="dim"))


def _title(plan: Plan) -> str:
    return (
        f"{plan.buyers} buyers, {plan.stock} pieces, {plan.processes} processes, "
        f"{plan.gap * 1000:g} ms between deciding and writing"
    )


def _fitting(console: Console, results: Sequence[Result]) -> Table:
    """Return the table with as many columns as fit."""
    unlimited = console.options.update(max_width=1000)
    for rank in sorted({column.rank for column in COLUMNS}, reverse=True):
        table = _table([column for column in COLUMNS if column.rank <= rank], results)
        if console.measure(table, options=unlimited).maximum <= console.width:
            return table
    return _table([column for column in COLUMNS if not column.rank], results, wrap=True)


def _table(columns: Sequence[Column], results: Sequence[Result], *, wrap: bool = False) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(
            column.heading, justify="left" if column.text else "right", no_wrap=not wrap, overflow="fold"
        )
    for result in results:
        cells = [Text(column.cell(result)) for column in columns]
        cells[-1].stylize(_style(result))
        table.add_row(*cells)
    return table


def _style(result: Result) -> str:
    if not result.kept:
        return "bold white on red"
    return "green" if result.sound else "yellow"


def _tries(tries: int) -> str:
    return "shown broken" if tries == 1 else f"shown, try {tries}"


class Bars:
    """A bar a strategy on a terminal; without one, a line for each when it is done."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        self._plan = plan
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]:<16}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def round_(self, variant: Variant, attempt: int) -> None:
        """Begin its bar, or begin it again."""
        if variant.name not in self._tasks:
            self._tasks[variant.name] = self._progress.add_task(
                variant.name, total=self._plan.buyers, said=""
            )
        self._progress.reset(self._tasks[variant.name], said="" if attempt == 1 else f"try {attempt}")

    def answered(self, variant: Variant, buyers: int) -> None:
        """Move its bar."""
        self._progress.update(self._tasks[variant.name], completed=buyers)

    def result(self, variant: Variant, result: Result) -> None:
        """Say how it ended."""
        task = self._tasks[variant.name]
        self._progress.update(task, completed=self._plan.buyers, said=word(result))
        self._progress.stop_task(task)
        if not self._console.is_terminal:
            self._console.print(f"{variant.name}: sold {result.sold} of {result.initial}, {word(result)}")
