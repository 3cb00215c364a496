"""The gate's rule, units + pending sales = the database, in the moments that break lesser rules."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import OperationalError, transaction
from redis import ConnectionPool

from inventory import stock_store
from inventory.checkpoints import checkpoint
from inventory.domain import Line, SoldOut
from inventory.models import Product, StockMovement
from inventory.progress import SaleProgress
from inventory.rows import find_products
from inventory.services import change_stock
from inventory.shards import Shard
from inventory.stock_reservation import StockReservation
from inventory.strategies import Reconciled, get_strategy
from inventory.strategies.redis_gate import RedisGate
from inventory.strategies.segmented import Segmented
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.interleaving import Killed, buyers
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)

GATES = {"redis_gate": RedisGate, "segmented": Segmented}
STOCK = 5


@pytest.fixture(autouse=True)
def nobody_rests():
    """Let no gate rest because of the test before."""
    yield
    for strategy in GATES.values():
        strategy.gate._rests_until = 0.0


def buying(strategy: str, sku: str, quantity: int = 1):
    """Return what a buyer does."""
    return partial(checkout, [Line(sku, quantity)], strategy)


def drift(strategy: str, sku: str) -> int:
    """Return the drift of a product whose stock is loaded, if need be, first."""
    GATES[strategy].gate.load([Line(sku, 1)])
    return get_strategy(strategy).drift(Product.objects.filter(sku=sku))[sku]


# Scenes: each ends with the drift, which must be 0.


def a_sale_fails_after_a_rebuild(strategy: str, sku: str) -> int:
    """A has units, the stock is read anew, A fails: its units were in what was read."""
    with buyers() as start:
        a = start("A", buying(strategy, sku), "recorded").reaches("recorded")
        get_strategy(strategy).prepare(Product.objects.filter(sku=sku))
        a.dies()
    return drift(strategy, sku)


def a_sale_commits_after_a_rebuild(strategy: str, sku: str) -> int:
    """A has units, the stock is read anew, A commits: what was read had A's units still in it."""
    with buyers() as start:
        a = start("A", buying(strategy, sku), "recorded").reaches("recorded")
        get_strategy(strategy).prepare(Product.objects.filter(sku=sku))
        assert a.ends().error is None
    return drift(strategy, sku)


def a_sale_commits_after_a_flush(strategy: str, sku: str) -> int:
    """A has units, Redis loses everything and is loaded by B, A commits."""
    with buyers() as start:
        a = start("A", buying(strategy, sku), "recorded").reaches("recorded")
        stock_store.client().flushdb()
        assert start("B", buying(strategy, sku), "decided").reaches("decided").dies()
        assert a.ends().error is None
    return drift(strategy, sku)


def a_slow_sale_is_voided_and_commits(strategy: str, sku: str) -> int:
    """The reconciler takes A for dead and gives its units back; A commits all the same."""
    with buyers() as start:
        a = start("A", buying(strategy, sku), "recorded").reaches("recorded")
        assert get_strategy(strategy).reconcile(older_than=0).voided == 1
        assert a.ends().error is None
    return drift(strategy, sku)


def a_slow_sale_is_voided_and_fails(strategy: str, sku: str) -> int:
    """The reconciler gives A's units back, and then A gives them back."""
    with buyers() as start:
        a = start("A", buying(strategy, sku), "recorded").reaches("recorded")
        assert get_strategy(strategy).reconcile(older_than=0).voided == 1
        a.dies()
    return drift(strategy, sku)


def a_buyer_dies_holding_units(strategy: str, sku: str) -> int:
    """A is gone after the script and before anything else, and nobody cleans up."""
    gate = GATES[strategy].gate
    gate.load([Line(sku, 1)])
    with buyers() as start:
        start("A", lambda: gate.shards[0].take(uuid4(), {sku: 1}, whole=True), "taken").ends()
    return drift(strategy, sku)


def a_sale_fails_before_its_commit(strategy: str, sku: str) -> int:
    """A fails with everything written."""
    with buyers() as start:
        start("A", buying(strategy, sku), "recorded").reaches("recorded").dies()
    return drift(strategy, sku)


def a_delivery_comes_while_the_stock_is_loaded(strategy: str, sku: str) -> int:
    """B has read the database, a delivery makes that old and is sold from, B puts in what it read."""
    find = "inventory.stock_reservation.find_products"
    with pytest.MonkeyPatch.context() as patch, buyers() as start:

        def slow(lines):
            found = find_products(lines)
            checkpoint("found")
            return found

        patch.setattr(find, slow)
        b = start("B", lambda: GATES[strategy].gate.load([Line(sku, 1)]), "found", "found")
        b.reaches("found").goes_on().reaches("found")
        change_stock(Product.objects.get(sku=sku), StockMovement.Kind.RECEIVED, 20, f"delivery:{sku}")
        b.ends()
    return drift(strategy, sku)


SCENES = [
    a_sale_fails_after_a_rebuild,
    a_sale_commits_after_a_rebuild,
    a_sale_commits_after_a_flush,
    a_slow_sale_is_voided_and_commits,
    a_slow_sale_is_voided_and_fails,
    a_buyer_dies_holding_units,
    a_sale_fails_before_its_commit,
    a_delivery_comes_while_the_stock_is_loaded,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("strategy", GATES)
def test_the_rule_holds(strategy, scene):
    """Units and pending sales together are what the database has, and the rest can be bought to the last."""
    sku = ProductFactory.create(on_hand=STOCK).sku
    assert scene(strategy, sku) == 0
    get_strategy(strategy).reconcile(older_than=0)
    checkout([Line(sku, totals_of(sku).left)], strategy)
    with pytest.raises(SoldOut):
        checkout([Line(sku, 1)], strategy)
    assert totals_of(sku).balanced


@pytest.mark.parametrize("strategy", GATES)
def test_what_was_read_before_a_drop_is_not_put_in_behind_it(strategy, monkeypatch):
    """A loader has published 0, a delivery drops the copy, the loader goes on: what came can be bought."""
    product = ProductFactory.create(on_hand=0)
    delivered: list[object] = []

    def run(script, keys, args):
        if script == "gate_load" and not delivered:
            delivered.append(change_stock(product, StockMovement.Kind.RECEIVED, STOCK, "delivery"))
        return stock_store.run(script, keys, args)

    monkeypatch.setattr("inventory.stock_reservation.run", run)
    GATES[strategy].gate.load([Line(product.sku, 1)])
    checkout([Line(product.sku, STOCK)], strategy)
    assert totals_of(product.sku).balanced


def test_what_is_loaded_during_a_drop_is_known_to_the_reconciler(monkeypatch):
    """Whenever a buyer comes, a copy that is kept is one that the reconciler looks at."""
    sku, gate = ProductFactory.create(on_hand=STOCK).sku, RedisGate.gate
    gate.load([Line(sku, 1)])
    server = stock_store.client()
    execute = server.execute_command

    def execute_then_load(*args, **options):
        reply = execute(*args, **options)
        monkeypatch.setattr(server, "execute_command", execute)
        gate.load([Line(sku, 1)])
        return reply

    monkeypatch.setattr(server, "execute_command", execute_then_load)
    gate.drop([sku])
    assert gate.shards[0].left([sku]) == {sku: STOCK}
    assert server.smembers(gate.shards[0].skus) == {sku}


# Mutants: each takes one rule away, and a scene must notice.

MUTANTS = {
    "units go back to any epoch": (
        "gate_void",
        "redis.call('HGET', KEYS[i], 'epoch') == ARGV[2 * i - 2]",
        "true",
        a_sale_fails_after_a_rebuild,
    ),
    "units go back twice": (
        "gate_void",
        "redis.call('HDEL', KEYS[1], ARGV[1]) == 1",
        "redis.call('HDEL', KEYS[1], ARGV[1]) >= 0",
        a_slow_sale_is_voided_and_fails,
    ),
    "a sale of another epoch settles quietly": (
        "gate_settle",
        "gone or redis.call('HGET', KEYS[i], 'epoch') ~= ARGV[i]",
        "gone",
        a_sale_commits_after_a_rebuild,
    ),
    "a sale without an entry settles quietly": (
        "gate_settle",
        "gone or ",
        "",
        a_slow_sale_is_voided_and_commits,
    ),
    "the script writes no ledger": (
        "gate_take",
        "if #lines > 0 then",
        "if false then",
        a_buyer_dies_holding_units,
    ),
    "what was read counts under any epoch": (
        "gate_publish",
        "redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1]",
        "false",
        a_delivery_comes_while_the_stock_is_loaded,
    ),
}


@pytest.fixture
def lua(tmp_path, monkeypatch):
    """A copy of the scripts that a test may change; call it with a script, what to replace and by what."""
    folder = tmp_path / "lua"
    shutil.copytree(stock_store._LUA, folder)
    monkeypatch.setattr(stock_store, "_LUA", folder)
    stock_store._script.cache_clear()

    def change(script: str, old: str, new: str) -> None:
        file = Path(folder / f"{script}.lua")
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    yield change
    stock_store._script.cache_clear()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_a_script_is_noticed(mutant, lua):
    """With one rule taken out of the scripts the scene that is about it drifts."""
    script, old, new, scene = MUTANTS[mutant]
    lua(script, old, new)
    assert scene("redis_gate", ProductFactory.create(on_hand=STOCK).sku) != 0


def test_a_gate_that_settles_before_the_commit_is_noticed(monkeypatch):
    """An entry that is struck while the transaction may still fail loses the units."""
    monkeypatch.setattr(SaleProgress, "write", SaleProgress.commit)
    assert a_sale_fails_before_its_commit("redis_gate", ProductFactory.create(on_hand=STOCK).sku) == -1


def test_a_ledger_that_is_written_after_the_script_is_noticed(monkeypatch, lua):
    """Between the script and the entry there is a moment in which nobody knows whose the units are."""
    lua("gate_take", "if #lines > 0 then", "if false then")
    take = Shard.take

    def take_then_enter(shard, sale, wanted, *, whole):
        taken = take(shard, sale, wanted, whole=whole)
        checkpoint("taken")
        stock_store.client().hset(shard.ledger, str(sale), "{}")
        return taken

    monkeypatch.setattr(Shard, "take", take_then_enter)
    sku = ProductFactory.create(on_hand=STOCK).sku
    with buyers() as start:
        a = start("A", buying("redis_gate", sku), "taken").reaches("taken")
        assert isinstance(a.dies().error, Killed)
    assert drift("redis_gate", sku) == -1


# Drift, failover, repetition.


@pytest.mark.parametrize("strategy", GATES)
@pytest.mark.parametrize("by", [2, -2])
def test_a_drift_is_told_and_mended(strategy, by):
    """A copy that is too high or too low is reported as a number, and rebuilt by the reconciler."""
    sku = ProductFactory.create(on_hand=STOCK).sku
    checkout([Line(sku, 1)], strategy)
    shard = next(shard for shard in GATES[strategy].gate.shards if shard.left([sku])[sku] or by > 0)
    stock_store.client().hincrby(shard.stock(sku), "units", by)
    assert get_strategy(strategy).drift(Product.objects.filter(sku=sku)) == {sku: by}
    assert get_strategy(strategy).reconcile() == Reconciled(rebuilt=1)
    assert drift(strategy, sku) == 0


@pytest.mark.parametrize("strategy", GATES)
def test_young_entries_are_left_alone(strategy):
    """Who is still at work isn't taken for dead."""
    sku = ProductFactory.create(on_hand=STOCK).sku
    with buyers() as start:
        a = start("A", buying(strategy, sku), "recorded").reaches("recorded")
        assert get_strategy(strategy).reconcile() == Reconciled()
        assert a.ends().error is None
    assert drift(strategy, sku) == 0


@pytest.mark.parametrize("strategy", GATES)
def test_without_redis_the_database_sells_alone(strategy, settings, caplog):
    """Redis is gone: buyers are served and refused exactly; it comes back with too much: they still are."""
    sku, url = ProductFactory.create(on_hand=3).sku, settings.REDIS_URL
    checkout([Line(sku, 1)], strategy)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"  # nothing listens there
    checkout([Line(sku, 1)], strategy)
    with pytest.raises(SoldOut):
        checkout([Line(sku, 2)], strategy)
    assert "selling from the database alone" in caplog.text
    settings.REDIS_URL = url
    GATES[strategy].gate._rests_until = 0.0
    with pytest.raises(SoldOut) as refused:
        checkout([Line(sku, 2)], strategy)
    assert refused.value.shortages[0].available == 1
    assert drift(strategy, sku) == 0
    checkout([Line(sku, 1)], strategy)
    assert totals_of(sku).balanced


@pytest.mark.parametrize("made", [True, False])
def test_a_sale_of_which_nobody_knows_is_left_to_the_reconciler(made, monkeypatch):
    """The connection is lost in COMMIT: the entry stays, and the database is asked later what came of it."""
    sku = ProductFactory.create(on_hand=STOCK).sku

    @contextmanager
    def lose(wait):
        with transaction.atomic():
            yield
            transaction.set_rollback(not made)
        raise OperationalError("server closed the connection")

    monkeypatch.setattr("inventory.strategies.redis_gate.sale_transaction", lose)
    monkeypatch.setattr(SaleProgress, "commit", lambda progress: None)  # a lost connection runs no hooks
    with pytest.raises(OperationalError):
        checkout([Line(sku, 1)], "redis_gate")
    assert drift("redis_gate", sku) == 0
    assert get_strategy("redis_gate").reconcile(older_than=0) == Reconciled(int(made), int(not made), 0)
    assert RedisGate.gate.shards[0].left([sku]) == {sku: STOCK - made}


def test_a_gate_that_had_no_answer_rests(settings, monkeypatch):
    """After one failure nobody asks for a while: not every buyer waits for a server that is silent."""
    monkeypatch.setattr("inventory.stock_reservation.REST", 60.0)
    sku = ProductFactory.create(on_hand=STOCK).sku
    settings.REDIS_URL = "redis://127.0.0.1:1/0"  # nothing listens there
    checkout([Line(sku, 1)], "redis_gate")
    monkeypatch.setattr(StockReservation, "_take", None)  # anyone who asks now fails
    checkout([Line(sku, 1)], "redis_gate")


def test_a_repeated_take_takes_once():
    """The answer was lost and the script is sent again: the same units, entered once."""
    sku, sale, shard = ProductFactory.create(on_hand=STOCK).sku, uuid4(), RedisGate.gate.shards[0]
    RedisGate.gate.load([Line(sku, 1)])
    assert shard.take(sale, {sku: 2}, whole=True) == shard.take(sale, {sku: 2}, whole=True)
    assert shard.left([sku]) == {sku: STOCK - 2}
    assert drift("redis_gate", sku) == 0


def test_two_carts_that_each_hold_a_part_do_not_both_go_without(monkeypatch):
    """Three units over three segments, two carts of three, each gets a part: one is served, one refused."""
    take = Shard.take

    def step_by_step(shard, sale, wanted, *, whole):
        taken = take(shard, sale, wanted, whole=whole)
        checkpoint("in shard")
        return taken

    sku = ProductFactory.create(on_hand=3).sku
    Segmented.gate.load([Line(sku, 1)])
    monkeypatch.setattr(Shard, "take", step_by_step)
    with buyers() as start:
        a = start("A", buying("segmented", sku, 3), "in shard").reaches("in shard")
        b = start("B", buying("segmented", sku, 3), "in shard", "in shard").reaches("in shard").goes_on()
        b.reaches("in shard")
        errors = [type(a.ends().error), type(b.ends().error)]
    assert sorted(error.__name__ for error in errors) == ["NoneType", "SoldOut"]
    assert (totals_of(sku).sold, drift("segmented", sku)) == (3, 0)


def test_every_thread_has_a_connection():
    """Two hundred buyers who begin at once in one process aren't told that Redis is down."""
    pool = stock_store.client().connection_pool
    alike = ConnectionPool(
        pool.connection_class, max_connections=pool.max_connections, **pool.connection_kwargs
    )
    assert len([alike.make_connection() for _ in range(200)]) == 200
