"""What every selling strategy has to fulfill. Subclass it for your own, and run it with pytest-django:

@pytest.mark.django_db(transaction=True)
class TestMine(StrategyContract):
    strategy = "shop.stock.MyStrategy"
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, connections, transaction
from django.db.models import F, Sum

from inventory.api import Stock
from inventory.exceptions import Busy, CauseUsed, InventoryError, SoldOut, TransactionError, UnknownSku
from inventory.models import BALANCES, Entry, Level, Location, Movement, State
from inventory.racing.crowd import race_processes, race_threads


class StrategyContract:
    """Tests of one strategy, on real connections, threads and processes.

    Attributes:
        strategy: the name or dotted path. alias: of `INVENTORY`, for its options and database.
        patience: seconds after which units that came in must be for sale again.
        processes: whether processes can race on the database; False for SQLite in memory.
    """

    strategy: str
    alias = "default"
    patience = 0.0
    processes = True

    @pytest.fixture(autouse=True)
    def _begin(self) -> None:
        self.stock = Stock(self.alias, strategy=self.strategy)
        self.sku = f"contract-{uuid4().hex[:8]}"

    # The rows that `write` writes are locations: a table that is there in every project.

    def place(self, lines: Any) -> Any:
        """Write an order, as a caller's `write` does."""
        return Location.objects.using(self.stock.using).create(code=f"order {lines.cause}"[:64], active=False)

    def sell(self, cause: str, quantity: int = 1, write: Any = None, sku: str | None = None) -> Any:
        """Sell units of the contract's item."""
        return self.stock.sell(
            {sku or self.sku: quantity}, cause=f"{self.sku}:{cause}", write=write or self.place
        )

    def sell_again_while_busy(self, cause: str, tries: int = 10) -> Any:
        """Sell a unit, and ask again while the answer is Busy: one of many may wait for long."""
        for _ in range(1, tries):
            with suppress(Busy):
                return self.sell(cause)
        return self.sell(cause)

    def receive(self, quantity: int, sku: str | None = None) -> None:
        """Take units in."""
        self.stock.receive(sku or self.sku, quantity, cause=f"in:{sku or self.sku}:{uuid4()}")

    def orders(self) -> int:
        """Count the orders that were written."""
        return Location.objects.using(self.stock.using).filter(code__startswith=f"order {self.sku}").count()

    def assert_adds_up(self, sold: int, left: int) -> None:
        """Compare orders, ledger and balances with each other."""
        using = self.stock.using
        entries = Entry.objects.using(using).filter(kind=Entry.Kind.SELL, cause__startswith=f"{self.sku}:")
        taken = Movement.objects.using(using).filter(entry__in=entries).aggregate(sum=Sum("quantity"))["sum"]
        assert (self.orders(), entries.count(), taken or 0) == (sold, sold, sold)
        assert self.stock.available(self.sku) == left
        for level in Level.objects.using(using).filter(item__sku=self.sku):
            assert {name: getattr(level, name) for name in BALANCES} == _sums(level, using)

    # One buyer.

    def test_it_sells_and_returns_what_write_returned(self) -> None:
        """A sale takes the units, writes, and is committed when it returns."""
        self.receive(3)
        order = self.sell("a", 2)
        assert order.code == f"order {self.sku}:a"
        assert not transaction.get_connection(self.stock.using).in_atomic_block
        (seen,) = race_threads([self.orders])  # on a connection of its own: it is committed
        assert seen == 1
        assert self.stock.available(self.sku) == 1

    def test_sold_out_names_every_short_line_and_changes_nothing(self) -> None:
        """A cart that is short in two of three lines takes nothing and writes nothing."""
        others = [f"{self.sku}-{number}" for number in range(2)]
        self.receive(5)
        for sku in others:
            self.receive(1, sku)
        with pytest.raises(SoldOut) as refused:
            self.stock.sell(
                {self.sku: 5, others[0]: 2, others[1]: 3}, cause=f"{self.sku}:a", write=self.place
            )
        assert {(s.sku, s.requested, s.available) for s in refused.value.shortages} == {
            (others[0], 2, 1),
            (others[1], 3, 1),
        }
        self.assert_adds_up(sold=0, left=5)

    def test_an_unknown_sku_is_named(self) -> None:
        """A cart with a SKU that there isn't changes nothing."""
        self.receive(1)
        with pytest.raises(UnknownSku) as refused:
            self.stock.sell({self.sku: 1, "there is none": 1}, cause=f"{self.sku}:a", write=self.place)
        assert refused.value.skus == ("there is none",)
        self.assert_adds_up(sold=0, left=1)

    def test_a_write_that_raises_undoes_the_sale(self) -> None:
        """The units are for sale again, and the error is the caller's own."""
        self.receive(1)

        def fail(lines: Any) -> None:
            self.place(lines)
            raise LookupError("no address")

        with pytest.raises(LookupError, match="no address"):
            self.sell("a", write=fail)
        self.assert_adds_up(sold=0, left=1)
        self.sell("b")
        self.assert_adds_up(sold=1, left=0)

    def test_a_write_that_swallows_the_databases_error_is_refused(self) -> None:
        """A transaction that the database has given up isn't reported as sold."""
        self.receive(1)

        def swallow(lines: Any) -> None:
            self.place(lines)
            try:
                with transaction.atomic(using=self.stock.using, savepoint=False):
                    self.place(lines)  # its code is there already
            except IntegrityError:
                pass

        with pytest.raises((TransactionError, transaction.TransactionManagementError)):
            self.sell("a", write=swallow)
        self.assert_adds_up(sold=0, left=1)

    def test_a_cause_counts_once(self) -> None:
        """The same cause answers as the first time, also when nothing is left; other lines are refused."""
        self.receive(2)
        first = self.sell("a", 2)
        assert self.sell("a", 2) == first
        with pytest.raises(CauseUsed):
            self.sell("a", 1)
        self.assert_adds_up_for_one(2)

    def assert_adds_up_for_one(self, quantity: int) -> None:
        """Compare ledger and balances after one sale of `quantity` units."""
        assert self.orders() == 1
        sold = Movement.objects.using(self.stock.using).filter(entry__cause__startswith=f"{self.sku}:")
        assert sold.aggregate(sum=Sum("quantity"))["sum"] == quantity

    def test_units_that_come_in_are_for_sale(self) -> None:
        """After a refusal a delivery is sold, at once or within the strategy's patience."""
        self.receive(1)
        self.sell("a")
        with pytest.raises(SoldOut):
            self.sell("b")
        self.receive(1)
        deadline = threading.Event()
        for _ in range(50):
            try:
                self.sell("b")
                break
            except SoldOut:
                assert self.patience, "units that came in were refused"
                deadline.wait(self.patience / 40)
        self.assert_adds_up(sold=2, left=0)

    def test_inside_an_open_transaction_it_rolls_back_or_refuses(self) -> None:
        """A strategy that leads says so; another one's sale ends as its caller's transaction does."""
        self.receive(1)

        def sell_and_fail() -> None:
            with transaction.atomic(using=self.stock.using):
                self.sell("a")
                raise ZeroDivisionError

        with pytest.raises((ZeroDivisionError, TransactionError)) as ended:
            sell_and_fail()
        assert self.stock.strategy.leads is isinstance(ended.value, TransactionError)
        self.assert_adds_up(sold=0, left=1)

    # Two buyers, step by step.

    @pytest.mark.parametrize("first_fails", [False, True], ids=["the first commits", "the first rolls back"])
    def test_the_second_buyer_waits_for_what_becomes_of_the_first(self, first_fails: bool) -> None:
        """Of one unit: A is stopped in `write`, and B gets the unit only if A doesn't."""
        self.receive(1)
        writing, go_on = threading.Event(), threading.Event()

        def slow(lines: Any) -> Any:
            order = self.place(lines)
            writing.set()
            assert go_on.wait(30)
            if first_fails:
                raise LookupError("no address")
            return order

        def second() -> Any:
            assert writing.wait(30)
            threading.Timer(0.2, go_on.set).start()  # B is under way by then, or comes later: both are right
            return self.sell("b")

        results = race_threads([lambda: self.sell("a", write=slow), second])
        sold = [isinstance(result, Location) for result in results]
        assert sum(sold) == 1, results
        if first_fails:
            assert sold[1]
            assert isinstance(results[0], LookupError)
        else:  # whichever of the two it is: a strategy may take the units before `write` or after it
            assert isinstance(results[sold.index(False)], SoldOut)
        self.assert_adds_up(sold=1, left=0)

    def test_the_same_cause_twice_at_once_is_one_sale(self) -> None:
        """A client that repeats its request while the first is under way gets the same order."""
        self.receive(5)
        results = race_threads([lambda: self.sell("a")] * 4)
        orders = {result.pk for result in results if isinstance(result, Location)}
        assert len(orders) == 1, results
        assert not [each for each in results if not isinstance(each, Location | InventoryError)], results
        self.assert_adds_up(sold=1, left=4)

    def test_carts_in_any_order_do_not_deadlock(self) -> None:
        """Carts of the same two items, written in opposite order, are all served."""
        other = f"{self.sku}-other"
        self.receive(40)
        self.receive(40, other)

        def buy(number: int) -> Any:
            pairs = [(self.sku, 1), (other, 1)]
            return self.stock.sell(
                pairs[:: 1 - 2 * (number % 2)], cause=f"{self.sku}:{number}", write=self.place
            )

        results = race_threads([lambda number=number: buy(number) for number in range(16)])  # type: ignore[misc]
        assert all(isinstance(result, Location) for result in results), results
        assert (self.stock.available(self.sku), self.stock.available(other)) == (24, 24)

    # Many buyers.

    def test_threads_never_oversell(self) -> None:
        """Forty buyers in threads get ten units: ten orders, thirty refusals."""
        self.receive(10)
        results = race_threads([partial(self.sell_again_while_busy, str(number)) for number in range(40)])
        assert sum(isinstance(result, Location) for result in results) == 10, results
        assert sum(isinstance(result, SoldOut) for result in results) == 30, results
        self.assert_adds_up(sold=10, left=0)

    def test_processes_never_oversell_also_when_one_is_killed(self) -> None:
        """Buyers in four processes, one killed by SIGKILL in mid-sale: nothing is oversold or lost."""
        if not self.processes:
            pytest.skip("processes can't share this database")
        self.receive(20)

        def buy(process: int) -> None:
            for number in range(15):
                try:
                    self.sell(f"{process}-{number}")
                except InventoryError:
                    continue

        ended = race_processes(buy, 4, kill=0, when=lambda: self.orders() > 1)
        assert ended[1:] == [0, 0, 0]
        for number in range(40):  # what the killed one has left is for sale
            try:
                self.sell(f"late-{number}")
            except SoldOut:
                break
        self.assert_adds_up(sold=20, left=0)

    def test_a_connection_that_is_cut_in_the_sale_costs_nothing(self) -> None:
        """The database ends the connection before the commit; repeating the cause makes one sale."""
        if connections[self.stock.using].vendor != "postgresql":
            pytest.skip("PostgreSQL can be asked to end a connection")
        self.receive(2)

        def cut(lines: Any) -> Any:
            order = self.place(lines)
            with connections[self.stock.using].cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return order

        with pytest.raises(InventoryError):
            self.sell("a", write=cut)
        connections[self.stock.using].close()
        self.sell("a")
        self.assert_adds_up(sold=1, left=1)


def _sums(level: Level, using: str) -> dict[str, int]:
    """Return a level's balances as the ledger has them."""
    movements = Movement.objects.using(using).filter(level=level)

    def total(**which: int) -> int:
        return movements.filter(**which).aggregate(sum=Sum(F("quantity")))["sum"] or 0

    states = {name: State[name.upper()] for name in BALANCES}
    return {name: total(target=state) - total(source=state) for name, state in states.items()}
