"""The race itself: real worker processes, real connections, real orders."""

import os
import signal
from contextlib import suppress
from multiprocessing.connection import wait

import psutil
import pytest
from django.db import connection

from locking.testing.contract.base import until
from orders.lab.models import Order, OrderItem, Product
from orders.lab.race import lab_products
from orders.lab.race import worker_pool as pools
from orders.lab.race.audit import read_totals, sampled
from orders.lab.race.engine import race
from orders.lab.race.interruption import Interrupted, interruptible
from orders.lab.race.messages import Round
from orders.lab.race.plan import Plan, choose, present
from orders.lab.race.worker_pool import WorkerPool
from orders.lab.strategies import STRATEGIES
from tests.lab.products import make, sell

pytestmark = pytest.mark.django_db(transaction=True)


class Silent:
    """Watches, and notes the results only."""

    def __init__(self):
        self.rounds, self.results, self.most_answered = [], [], 0

    def round_(self, variant, attempt):
        """Note the round."""
        self.rounds.append((variant.name, attempt))

    def answered(self, variant, buyers):
        """Note how many."""
        self.most_answered = max(self.most_answered, buyers)

    def result(self, variant, result):
        """Note the result."""
        self.results.append(result)


def run(names, **numbers):
    """Race these strategies with a small crowd."""
    plan = Plan(**{"buyers": 8, "stock": 2, "gap": 0.02, "processes": 2} | numbers)
    return race(plan, choose(names, STRATEGIES, plan), Silent())


def rounds(sku, *hands, strategy="row_lock", gap=0.0, deadline=10.0):
    """One round for each hand of buyers."""
    return [Round(sku, strategy, gap, None, deadline, hand) for hand in hands]


def nothing_is_left():
    """No product of the lab, no order, no item."""
    return not (Product.objects.exists() or Order.objects.exists() or OrderItem.objects.exists())


@pytest.fixture
def product():
    """Two pieces of one lab product, cleared away afterwards."""
    with lab_products.race_in_progress() as name:
        yield lab_products.stock_up(name, 1, "row_lock", 2)


def labelled(sound):
    """The names of all variants that carry this label."""
    variants, _ = present("all", choose("all", STRATEGIES, Plan()), STRATEGIES)
    return ",".join(v.name for v in variants if v.sound is sound)


def test_every_sound_strategy_is_exact_over_processes():
    """Eight buyers from two processes (one, where it claims no more) get the two pieces; six are refused."""
    for result in run(labelled(sound=True)):
        assert result.verdict == "exact", result
        assert (result.sold, result.left, result.refused, result.unaccounted) == (2, 0, 6, 0)


def test_every_broken_strategy_is_shown_broken_over_processes():
    """The same crowd finds the fault of each broken strategy, and the traces tell of it.

    The machine decides which buyer reads too early and which commits first: where that hides a fault, the
    crowd comes again.
    """
    for result in run(labelled(sound=False), buyers=12, tries=20):
        assert result.shown_broken, result
        assert result.evidence, result


def test_every_variant_leaves_nothing_behind():
    """After a race there is no product, order, item, or worker."""
    watcher = Silent()
    plan = Plan(buyers=4, stock=1, gap=0.0, processes=2)
    results = race(plan, choose("row_lock,redis_script", STRATEGIES, plan), watcher)
    assert [result.name for result in results] == ["row_lock", "redis_script"]
    assert watcher.results == results
    assert watcher.most_answered == 4
    assert nothing_is_left()


def test_a_broken_strategy_that_can_not_show_its_fault_gets_its_tries():
    """One buyer alone never collides: each of the tries is made, and the verdict admits it."""
    watcher = Silent()
    plan = Plan(buyers=1, stock=5, gap=0.0, processes=1, tries=2)
    (result,) = race(plan, choose("lost_update", STRATEGIES, plan), watcher)
    assert watcher.rounds == [("lost_update", 1), ("lost_update", 2)]
    assert result.verdict == "NOT SHOWN broken in 2 tries"


def test_more_stock_than_buyers_is_sold_to_all():
    """Exact means min(stock, demand), not an empty shelf."""
    (result,) = run("row_lock", buyers=3, stock=10, processes=1)
    assert (result.sold, result.left, result.exact) == (3, 7, True)


def test_an_empty_shelf_refuses_every_buyer():
    """Nothing there, nothing sold, and that is exact."""
    (result,) = run("conditional_update", stock=0, processes=1)
    assert (result.sold, result.refused, result.exact) == (0, 8, True)


def test_the_stock_is_sampled_when_the_report_asks():
    """The samples begin at the full stock and end at the empty one."""
    plan = Plan(buyers=4, stock=2, gap=0.0, processes=1)
    (result,) = race(plan, choose("row_lock", STRATEGIES, plan), Silent(), sample=True)
    assert (result.samples[0].left, result.samples[0].sold) == (2, 0)
    assert (result.samples[-1].left, result.samples[-1].sold) == (0, 2)


def test_a_worker_that_dies_is_an_error_and_is_replaced(product, started_afresh):
    """Its buyers' outcomes say so, the others get their answers, and the next race has all workers."""
    with WorkerPool(2) as pool:
        victim = pool.pids[0]

        def kill_the_first(_):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

        outcomes = pool.race(rounds(product.sku, (1, 3), (2, 4)), kill_the_first)
        assert [o.answer for o in outcomes] == ["error", "sold", "error", "sold"]
        assert "died, exit status -9" in outcomes[0].problem
        outcomes = pool.race(rounds(product.sku, (1, 3), (2, 4)), lambda _: None)
        assert [o.answer for o in outcomes] == ["refused"] * 4


def test_a_worker_that_falls_silent_is_killed_in_time(product, monkeypatch):
    """A stopped process is written off after a bounded time, and the others race without it."""
    with WorkerPool(2) as pool:
        pool.race(
            rounds(product.sku, (1,), (2,)), lambda _: None
        )  # each has its connection then, and is quick
        monkeypatch.setattr(pools, "READY_WITHIN", 2.0)
        # The other one may be slow: only who is left alone runs out of time.
        monkeypatch.setattr(pools, "wait", lambda who, left: wait(who, left if len(who) == 1 else 30.0))
        silent = pool.pids[0]
        os.kill(silent, signal.SIGSTOP)
        outcomes = pool.race(rounds(product.sku, (3,), (4,)), lambda _: None)
        assert [o.answer for o in outcomes] == ["error", "refused"]
        assert "had not answered after 2 s" in outcomes[0].problem
        assert silent not in pool.pids


def test_a_crew_that_is_sent_home_leaves_no_process():
    """Closing the pool ends every worker, and waits until it has ended."""
    with WorkerPool(2) as pool:
        pids = pool.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_that_do_not_leave_are_killed(monkeypatch):
    """A stopped worker does not hear that it may go: it is killed with the process that waits for it."""
    monkeypatch.setattr(pools, "LEAVE_WITHIN", 0.5)
    with WorkerPool(2) as pool:
        pids = pool.pids
        os.kill(pids[0], signal.SIGSTOP)
    until(lambda: not any(map(psutil.pid_exists, pids)), 30.0)


def test_why_workers_can_not_start_is_reported(product, monkeypatch, started_afresh):
    """Settings that can't be loaded: each buyer hears what was wrong."""
    shared = pools.shared_settings() | {"INSTALLED_APPS": ["nowhere"]}
    monkeypatch.setattr(pools, "shared_settings", lambda: shared)
    with WorkerPool(2) as pool:
        outcomes = pool.race(rounds(product.sku, (1,), (2,)), lambda _: None)
    assert [o.answer for o in outcomes] == ["error", "error"]
    assert "ModuleNotFoundError: No module named 'nowhere'" in outcomes[0].problem


def test_what_goes_wrong_for_a_buyer_is_reported(product):
    """An exception in the shop is an error with its type and message, not a refusal."""
    with WorkerPool(1) as pool:
        (outcome,) = pool.race(rounds("nowhere", (1,)), lambda _: None)
    assert outcome.answer == "error"
    assert outcome.problem.startswith("UnknownProduct: ")


def test_an_acknowledged_order_is_the_one_in_the_books(product):
    """The ids that buyers were given are the ids of the rows."""
    with WorkerPool(1) as pool:
        outcomes = pool.race(rounds(product.sku, (1, 2, 3)), lambda _: None)
    assert {o.order for o in outcomes if o.order} == read_totals(product.sku).orders
    assert sum(o.answer == "sold" for o in outcomes) == 2


def test_leftovers_of_a_killed_race_are_swept():
    """Products whose race holds no mark any more are cleared with their orders and their keys."""
    abandoned = lab_products.stock_up("0123abcd", 1, "redis_script", 3)
    assert lab_products.sweep() == 1
    assert not Product.objects.filter(pk=abandoned.pk).exists()
    assert nothing_is_left()


def test_clearing_asks_what_any_plan_answers_quickly():
    """Where the planner last saw empty tables it takes milliseconds; as a nested question it took minutes."""
    orders = Order.objects.bulk_create([Order(total=1, strategy="by hand") for _ in range(400)])
    items = [OrderItem(order=order, product=make(), quantity=1, unit_price=1) for order in orders]
    OrderItem.objects.bulk_create(items)
    Order.objects.all().delete()
    Product.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE lab_order, lab_orderitem, lab_product")
        cursor.execute("SET statement_timeout = '10s'")
        products = [lab_products.stock_up("0123abcd", number, "row_lock", 5) for number in range(30)]
        for product in products * 2:
            sell("row_lock", {product.sku: 1})
        lab_products.clear("0123abcd")
        cursor.execute("RESET statement_timeout")
    assert nothing_is_left()


def test_a_race_in_progress_is_not_swept(product):
    """Another race's sweep leaves the products of this one alone."""
    assert lab_products.sweep() == 0
    product.refresh_from_db()


def test_products_of_others_in_the_lab_are_not_swept():
    """Only what a race has made is a race's to clear."""
    mine = make(3)
    assert lab_products.sweep() == 0
    mine.refresh_from_db()


def test_more_buyers_than_connections_are_refused():
    """The refusal comes before anything is started and says how many there is room for."""
    with pytest.raises(lab_products.LabError, match=r"buyers is 100000.*PostgreSQL has room for"):
        lab_products.require_connections(100_000)


def test_sampling_is_off_unless_wanted(product):
    """No look, no cost."""
    with sampled(product.sku, wanted=False) as samples:
        pass
    assert samples == []


def test_an_interruption_between_a_statement_and_its_answer_is_cleared_up():
    """The signal may come at any moment: the race's products are gone, and the signal is what is reported."""
    with pytest.raises(Interrupted), interruptible(), lab_products.race_in_progress() as name:
        lab_products.stock_up(name, 1, "row_lock", 1)
        connection.connection.pgconn.send_query(b"SELECT 1")
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the signal came too late")
    assert not Product.objects.filter(sku__startswith=f"{name}-").exists()
