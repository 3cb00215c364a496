"""Many sales in one commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from time import monotonic
from typing import Any, ClassVar, Final

from django.db import connections, transaction

from inventory import ledger
from inventory.answers import as_stored
from inventory.conf import AliasSettings
from inventory.exceptions import Busy, DatabaseUnavailable, InventoryError, OutcomeUnknown, TransactionError
from inventory.group_commit import GroupCommit, Ticket
from inventory.hooks import reach
from inventory.leading_connection import LeadingConnection
from inventory.ledger import take
from inventory.strategies.base import Repeated, Sale, Strategy, Understood

SHORTEST_WAIT: Final = 0.05
"""Seconds that a batch waits at least for a locked level; then it goes on without the sales that need it."""

TURNS: Final = 4
"""It waits for as many batches like its own: those of other processes hold the level in turn."""

SMOOTHING: Final = 8
"""How long a batch holds its levels is averaged over about so many."""

STEADY: Final = 8
"""After so many batches in a row of which every sale was made, the next one may be written first."""


class Combined(Strategy):
    """Idea:
        A hot level is free again only after its commit is on the disk. So let one buyer sell for all who wait
        in its process: take the units of all in one statement, write, commit once, and then answer each.

    Interleaving:
        A leads. B and C come while A commits, and wait. A hands the lead to B, which sells for C as well: two
        units are left, B wants one and C two, so only C is refused, with the one that is left.

    Verdict:
        Exact: the statement decides each sale in turn under the levels' locks. When `write` fails for one of
        a batch, nothing was sold yet, and each is made in a savepoint of its own.

    Cost:
        A few statements for up to `most` sales. `write` runs in the leader's thread; one that takes the whole
        batch (`write_many`) costs the least.

    Options:
        most: sales in a batch. shared_connection: leaders sell over one connection that the process keeps
        for them, where connections are kept (`CONN_MAX_AGE`, PostgreSQL); docs/adr/0037 has what that brings.
        write_first: while all of each batch are sold, `write` is called before the units are taken, and other
        processes write meanwhile; so it may write in vain, or again (PostgreSQL; docs/adr/0073).
    """

    name: ClassVar[str] = "combined"

    def __init__(
        self, settings: AliasSettings, most: int = 64, shared_connection: bool = False,
        write_first: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ValueError(f"most is a whole number from 1, not {most!r}")
        self.group_commit = GroupCommit(self.sell_batch, most)
        self._leading = LeadingConnection(settings.database) if shared_connection else None
        self._held_seconds, self._write_first, self._sold_whole = 0.0, write_first, 0  # batches in a row

    def sell(self, sale: Sale) -> None:
        """Lead, or wait for a leader; sell alone where others have locked a level for longer."""
        if self.group_commit.submit(sale, sale.wait).alone:
            sale.in_transaction()

    def sell_batch(self, batch: list[Ticket]) -> None:
        """Sell to each of `batch`, or say why not in its `error`; committed on return."""
        with self._leading.in_use() if self._leading else nullcontext():
            self._sell_batch(batch, batch[0].sale.using)

    def _sell_batch(self, batch: list[Ticket], using: str) -> None:
        first, connection = batch[0].sale, connections[using]
        postgresql = connection.vendor == "postgresql"
        steady = self._write_first and postgresql and self._sold_whole >= STEADY
        for write_first in [True, False] if steady and not connection.in_atomic_block else [False]:
            try:
                with Understood(first.cause, connection, first):
                    self._sell_at_once(batch, using, write_first=write_first)
                return
            except (DatabaseUnavailable, OutcomeUnknown, TransactionError):
                raise
            except Exception as error:  # nothing was sold; taking first tells why
                failure, self._sold_whole = error, 0
        if isinstance(failure, Busy) and postgresql:
            self._sell_at_once(batch, using, skip_locked=True)
        elif isinstance(failure, Busy) or len(batch) == 1:
            raise failure
        else:  # one of them can't be written: each is tried apart
            _sell_in_savepoints(batch, using)

    def _sell_at_once(
        self, batch: list[Ticket], using: str, *, skip_locked: bool = False, write_first: bool = False
    ) -> None:
        for ticket in batch:
            ticket.sale.restart()
            ticket.error, ticket.alone = None, False
        sales = [ticket.sale for ticket in batch]
        wait = None if skip_locked else max(SHORTEST_WAIT, TURNS * self._held_seconds)
        with sales[0].transaction():
            if write_first:
                _call_writes(sales)
            outcomes = take([sale.wanted for sale in sales], using, wait=wait, skip_locked=skip_locked)
            taken = monotonic()
            reach("decided")
            for ticket, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Busy):
                    ticket.alone = True
                elif isinstance(outcome, InventoryError):
                    ticket.error = outcome
                else:
                    ticket.sale.posted = outcome
            whole = all(sale.posted and not sale.posted.repeated for sale in sales)
            if write_first and not whole:
                raise Repeated
            _write([sale for sale in sales if sale.posted], using)
        self._sold_whole = self._sold_whole + 1 if whole else 0
        self._held_seconds += (monotonic() - taken - self._held_seconds) / SMOOTHING
        for ticket in batch:
            ticket.answered = True


def _call_writes(sales: Iterable[Sale]) -> None:
    """Call `write` of each sale, or `write_many` once for all that share it."""
    together: dict[Callable[..., Sequence[Any]], list[Sale]] = defaultdict(list)
    for sale in sales:
        if sale.write_many is None:
            sale.write(keep=False)
        else:
            together[sale.write_many].append(sale)
    for write_many, of_them in together.items():
        values = list(write_many([sale.lines for sale in of_them]))
        for sale, value in zip(of_them, values, strict=True):
            sale.value, sale.written = value, True


def _write(sales: Sequence[Sale], using: str) -> None:
    """Write what is new and not written yet, and keep the answers."""
    new = {sale.entry.id: sale for sale in sales if not sale.entry.repeated}
    _call_writes(sale for sale in new.values() if not sale.written)
    answers = {pk: answer for pk, sale in new.items() if (answer := as_stored(sale.value)) is not None}
    if answers:
        ledger.store_answers(answers, using)
    for sale in sales:
        if sale.entry.repeated and sale.entry.id in new:  # the same cause twice in one batch
            sale.value = new[sale.entry.id].value
        elif sale.entry.repeated:
            sale.write()
    reach("recorded")


def _sell_in_savepoints(batch: list[Ticket], using: str) -> None:
    with batch[0].sale.transaction():
        for ticket in batch:
            ticket.sale.restart()
            ticket.error = None
            try:
                with transaction.atomic(using=using):
                    ticket.sale.take()
                    ticket.sale.write()
            except Exception as error:
                ticket.sale.restart()
                ticket.error = error
    for ticket in batch:
        ticket.answered = True
