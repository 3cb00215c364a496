"""`segmented` and `redis_gate` on a real Redis Cluster of three servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.crc import key_slot

from inventory import stock_store
from inventory.domain import Line, SoldOut
from inventory.models import Product
from inventory.strategies import get_strategy
from inventory.strategies.redis_gate import RedisGate
from inventory.strategies.segmented import Segmented
from locking import BackendUnavailable
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.totals import totals_of
from tests.locking.backends.redis.topologies.servers import Cluster, needs_redis_server, servers
from tests.support.rush import served_at_once

pytestmark = [pytest.mark.django_db(transaction=True), needs_redis_server]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters with a third of the slots each."""
    with servers(tmp_path_factory.mktemp("cluster")) as start:
        yield Cluster(start)


@pytest.fixture(autouse=True)
def stock_in_the_cluster(nodes, settings):
    """Keep the stock there for the test."""
    settings.REDIS_CLUSTER = True
    settings.REDIS_URL = nodes.masters[0].url
    yield
    for strategy in (RedisGate, Segmented):
        strategy.gate._rests_until = 0.0


def test_the_segments_lie_on_several_servers(nodes):
    """Each segment's keys share a slot, and the segments' slots aren't all one server's."""
    slots = []
    for shard in Segmented.gate.shards:
        keys = (shard.ledger, shard.skus, shard.stock("mug"))
        assert len({key_slot(key.encode()) for key in keys}) == 1
        slots.append(key_slot(shard.ledger.encode()))
    assert len({slot * 3 // 16384 for slot in slots}) > 1


@pytest.mark.parametrize("strategy", ["redis_gate", "segmented"])
def test_a_cart_of_several_lines_is_sold_and_refused(strategy):
    """Two products in one cart, then a line of all that is left over the segments, then sold out."""
    pen, mug = ProductFactory.create(on_hand=4).sku, ProductFactory.create(on_hand=3).sku
    checkout([Line(pen, 1), Line(mug, 1)], strategy)
    checkout([Line(pen, 3)], strategy)
    with pytest.raises(SoldOut) as refused:
        checkout([Line(pen, 1), Line(mug, 1)], strategy)
    assert [(s.sku, s.available) for s in refused.value.shortages] == [(pen, 0)]
    assert (totals_of(pen).left, totals_of(mug).left) == (0, 2)
    assert set(get_strategy(strategy).drift(Product.objects.all()).values()) == {0}


@pytest.mark.parametrize("strategy", ["redis_gate", "segmented"])
def test_twelve_buyers_of_ten_units(strategy):
    """Real threads at once: ten are served, two refused, and cluster and database agree."""
    sku = ProductFactory.create(on_hand=10).sku
    assert served_at_once(12, sku, strategy) == 10
    assert totals_of(sku).balanced
    assert set(get_strategy(strategy).drift(Product.objects.all()).values()) == {0}


def test_a_server_that_lost_its_memory_is_read_again(nodes):
    """One of three servers is flushed: what it held is read from the database, and nothing is undersold."""
    sku = ProductFactory.create(on_hand=10).sku
    checkout([Line(sku, 2)], "segmented")
    lost = stock_store.client().get_node_from_key(Segmented.gate.shards[0].ledger)
    stock_store.client().flushall(target_nodes=lost)
    checkout([Line(sku, 8)], "segmented")
    with pytest.raises(SoldOut):
        checkout([Line(sku, 1)], "segmented")
    assert totals_of(sku).balanced


def test_a_script_whose_reply_was_lost_is_not_run_again(monkeypatch):
    """It has taken the last unit and nobody was told: that is unknown, and not sold out."""
    sku = ProductFactory.create(on_hand=1).sku
    get_strategy("redis_script").prepare(Product.objects.filter(sku=sku))
    parse, replies = redis.Redis.parse_response, []

    def lose_the_first(server, connection, command, **options):
        reply = parse(server, connection, command, **options)
        if command in ("EVALSHA", "EVAL"):
            replies.append(reply)
            if len(replies) == 1:
                raise redis.TimeoutError("lost")
        return reply

    monkeypatch.setattr(redis.Redis, "parse_response", lose_the_first)
    with pytest.raises(BackendUnavailable):
        checkout([Line(sku, 1)], "redis_script")
    assert len(replies) == 1


def test_a_slot_on_its_way_to_a_new_master_is_sold_from(monkeypatch):
    """An ASK names a master without slots, of which no client has heard; the sale is made."""
    sku = ProductFactory.create(on_hand=2).sku
    checkout([Line(sku, 1)], "redis_gate")
    parse, asked = redis.Redis.parse_response, list[str]()
    slot = key_slot(RedisGate.gate.shards[0].ledger.encode())

    def ask(server, connection, command, **options):
        reply = parse(server, connection, command, **options)
        if command == "EVALSHA" and not asked:
            asked.append(command)
            raise redis.exceptions.AskError(f"{slot} 127.0.0.1:1")  # nothing listens there
        return reply

    monkeypatch.setattr(redis.Redis, "parse_response", ask)
    checkout([Line(sku, 1)], "redis_gate")
    assert totals_of(sku).left == 0
