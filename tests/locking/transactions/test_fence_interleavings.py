"""Two holders at two connections, on every database and isolation level: the one unit is sold once."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.db import connections, transaction

from locking import LockTransactionError, StaleFencingToken, get_lock, locked_transaction
from locking.core.lease import Lease, State
from locking.transactions.fence import MAKE, UPSERT, _write
from locking.utils.databases import code_of, timestamp
from tests.locking.support.fenced_databases import (
    MARIADB,
    POSTGRESQL,
    REFUSED,
    SQLITE,
    Database,
    sales,
    sell,
)
from tests.locking.support.players import Player, two_players

SERVERS = [*POSTGRESQL, *MARIADB]
EVERYWHERE = [*SERVERS, SQLITE]

on = pytest.mark.parametrize


def section(alias: str):
    """Return the fenced section that all callers want to enter."""
    return locked_transaction("shop", using=alias, fenced=True, ttl=60, wait=10)


def lock() -> Lease:
    """Take the lock alone; the lease must be kept, or it counts as given up."""
    return get_lock("shop", fenced=True, ttl=60, wait=10).acquire()


def sell_if_not_sold(buyer: str) -> None:
    """Read, decide, write."""
    if not sales():
        sell(buyer)


@on("fenced_database", EVERYWHERE, indirect=True, ids=str)
def test_a_holder_that_was_overtaken_before_its_transaction_is_refused(
    fenced_database: str, redis_database: redis.Redis
) -> None:
    """A has the lock, Redis forgets it, B sells; A still believes in its lease, and the database doesn't."""
    with two_players(fenced_database) as (a, b):
        lease = a.does(lock)
        redis_database.flushdb()
        b.enters(section(fenced_database))
        b.does(sell_if_not_sold, "B")
        b.leaves()
        with pytest.raises(StaleFencingToken, match=f"token {lease.fencing_token}"):
            a.enters(section(fenced_database))
    assert sales() == ["B"]


@on("fenced_database", SERVERS, indirect=True, ids=str)
def test_a_holder_behind_its_fence_keeps_the_next_one_waiting(
    fenced_database: str, redis_database: redis.Redis
) -> None:
    """A is behind its fence when it loses the lock: B gets it, waits for A's end, and reads A's sale."""
    with two_players(fenced_database) as (a, b):
        a.enters(section(fenced_database))
        redis_database.flushdb()
        waiting = b.begins_to_enter(section(fenced_database))
        assert b.is_seen_waiting()
        a.does(sell_if_not_sold, "A")
        a.leaves()
        assert waiting.result(30)
        b.does(sell_if_not_sold, "B")
        b.leaves()
    assert sales() == ["A"]


@on("fenced_database", SERVERS, indirect=True, ids=str)
def test_an_older_holder_that_waited_at_the_fence_is_refused(
    fenced_database: str, redis_database: redis.Redis
) -> None:
    """B is behind its fence, A with the older token waits for it: when B has committed, A is stale."""
    with two_players(fenced_database) as (a, b):
        held = a.does(lock)
        redis_database.flushdb()
        b.enters(section(fenced_database))
        waiting = a.begins_to_enter(section(fenced_database))
        assert a.is_seen_waiting()
        b.does(sell_if_not_sold, "B")
        b.leaves()
        with pytest.raises(StaleFencingToken):
            waiting.result(30)
        assert held.state is State.LOST
    assert sales() == ["B"]


@on("fenced_database", SERVERS, indirect=True, ids=str)
def test_an_older_holder_goes_on_where_the_newer_one_gave_up(
    fenced_database: str, redis_database: redis.Redis
) -> None:
    """B rolls back, its token is gone with it, and A, which was not overtaken, sells."""
    with two_players(fenced_database) as (a, b):
        held = a.does(lock)
        redis_database.flushdb()
        b.enters(section(fenced_database))
        waiting = a.begins_to_enter(section(fenced_database))
        assert a.is_seen_waiting()
        b.does(transaction.set_rollback, True, fenced_database)
        with pytest.raises(LockTransactionError):
            b.leaves()
        assert waiting.result(30) is held
        a.does(sell_if_not_sold, "A")
        a.leaves()
    assert sales() == ["A"]


@on("fenced_database", EVERYWHERE, indirect=True, ids=str)
def test_what_was_read_in_one_transaction_may_be_used_in_the_next(fenced_database: str) -> None:
    """One hold, one token, several transactions: all of them pass."""
    with get_lock("shop", fenced=True) as lease:
        with locked_transaction("shop", using=fenced_database, fenced=True) as first:
            seen = sales()
        with locked_transaction("shop", using=fenced_database, fenced=True) as second:
            sell(f"after {len(seen)}")
        assert first.fencing_token == second.fencing_token == lease.fencing_token
    assert sales() == ["after 0"]


@on("fenced_database", EVERYWHERE, indirect=True, ids=str)
def test_a_number_minted_twice_belongs_to_the_first(
    fenced_database: str, redis_database: redis.Redis
) -> None:
    """After a failover B has A's very number: the owner tells them apart, and A's next transaction passes."""
    with two_players(fenced_database) as (a, b):
        first = a.does(lock).leases[0]
        a.enters(section(fenced_database))
        a.leaves()
        redis_database.flushdb()
        second = b.does(lock).leases[0]
        second.token = first.token
        redis_database.flushdb()
        with pytest.raises(StaleFencingToken):
            b.enters(section(fenced_database))
        a.enters(section(fenced_database))
        a.does(sell_if_not_sold, "A")
        a.leaves()
    assert sales() == ["A"]


@on("fenced_database", [POSTGRESQL[0], SQLITE], indirect=True, ids=str)
def test_mutant_a_rule_that_compares_no_owners_sells_the_unit_twice(
    fenced_database: str, redis_database: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain `<=`: B, who has A's very number, sells, and A is let in again with what it read before."""
    mutant = UPSERT.replace(" AND locking_fence.owner = excluded.owner", "")
    assert mutant != UPSERT, "the rule isn't written like this any more"
    monkeypatch.setattr("locking.transactions.fence.UPSERT", mutant)
    with two_players(fenced_database) as (a, b):
        first = a.does(lock).leases[0]
        a.enters(section(fenced_database))
        assert a.does(sales) == []
        a.leaves()
        redis_database.flushdb()
        second = b.does(lock).leases[0]
        second.token = first.token
        b.enters(section(fenced_database))
        b.does(sell, "B")
        b.leaves()
        a.enters(section(fenced_database))
        a.does(sell, "A")
        a.leaves()
    assert sales() == ["A", "B"]


ON_DUPLICATE_KEY = """
INSERT INTO locking_fence (name, token, owner, mark, updated_at) VALUES (%s, %s, %s, %s, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE owner = IF(token < VALUES(token), VALUES(owner), owner),
       token = GREATEST(token, VALUES(token))
"""


@on("fenced_database", [MARIADB[0]], indirect=True, ids=str)
def test_mutant_an_upsert_of_mysql_cannot_tell_a_stale_token(
    fenced_database: str, redis_database: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row count is above 0 where nothing was changed as well: A, who was overtaken, is let in."""

    def write(connection: Any, key: str, token: int, owner: str, mark: str) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(ON_DUPLICATE_KEY, [key, token, owner, mark])
            return bool(cursor.rowcount)

    monkeypatch.setattr("locking.transactions.fence._write", write)
    with two_players(fenced_database) as (a, b):
        a.does(lock)
        redis_database.flushdb()
        b.enters(section(fenced_database))
        b.does(sell, "B")
        b.leaves()
        a.enters(section(fenced_database))
        a.does(sell, "A")
        a.leaves()
    assert sales() == ["A", "B"]


@on("fenced_database", EVERYWHERE, indirect=True, ids=str)
def test_a_holder_that_was_behind_the_fence_gets_no_new_token(
    fenced_database: str, redis_database: redis.Redis
) -> None:
    """A reads, B sells, and Redis falls back to a copy that names A: A must not act on what it read."""
    with two_players(fenced_database) as (a, b):
        held = a.does(lock)
        copy = redis_database.dump("shop") or b""
        a.enters(section(fenced_database))
        assert a.does(sales) == []
        a.leaves()
        redis_database.flushdb()
        b.enters(section(fenced_database))
        b.does(sell_if_not_sold, "B")
        b.leaves()
        redis_database.restore("shop", 60_000, copy, replace=True)
        with pytest.raises(StaleFencingToken):
            a.enters(section(fenced_database))
        assert held.state is State.LOST
    assert sales() == ["B"]


@on("fenced_database", [REFUSED], indirect=True, ids=str)
def test_an_isolation_level_that_writes_over_what_it_does_not_see_is_refused(fenced_database: str) -> None:
    """REPEATABLE READ without snapshot isolation is refused before the body runs, and the lock is free."""
    with (
        pytest.raises(LockTransactionError, match="innodb_snapshot_isolation=ON"),
        section(fenced_database),
    ):
        pytest.fail("the body ran")
    assert not get_lock("shop").locked()


# --- the mistakes, on the real thing ----------------------------------------------------------------------


TOKENS = {"A": 1, "B": 2}


def begin() -> None:
    """Open a transaction by hand."""
    transaction.set_autocommit(False, "fenced")


def commit() -> None:
    """End it."""
    transaction.commit("fenced")
    transaction.set_autocommit(True, "fenced")


def fence(buyer: str) -> None:
    """The statement of the fence, wherever the test puts it."""
    assert _write(connections["fenced"], "shop", TOKENS[buyer], buyer, "mark")


def fence_for_update(buyer: str) -> None:
    """A fence that locks the row, and writes only what changes."""
    with connections["fenced"].cursor() as cursor:
        cursor.execute("SELECT token FROM locking_fence WHERE name = 'shop' FOR UPDATE")
        (token,) = cursor.fetchone()
        assert token <= TOKENS[buyer]
        if token < TOKENS[buyer]:
            cursor.execute("UPDATE locking_fence SET token = %s WHERE name = 'shop'", [TOKENS[buyer]])


def fence_in_a_savepoint(buyer: str) -> None:
    """A fence whose savepoint is rolled back."""
    point = transaction.savepoint("fenced")
    fence(buyer)
    transaction.savepoint_rollback(point, "fenced")


def play(script: str, a: Player, b: Player, fence=fence) -> None:
    """Play steps such as `A begin`, `B read`; a sale is made by anyone who has read that there was none."""
    seen: dict[str, list[str]] = {}

    def step(player: Player, buyer: str, what: str) -> None:
        if what == "read":
            seen[buyer] = player.does(sales)
        elif what == "sell":
            assert seen[buyer] == []
            player.does(sell, buyer)
        elif what == "fence":
            player.does(fence, buyer)
        else:
            player.does({"begin": begin, "commit": commit}[what])

    for line in script.split(","):
        buyer, what = line.split()
        step({"A": a, "B": b}[buyer], buyer, what)


READ_FIRST = "A begin,A read,B begin,B read,A fence,A sell,A commit,B fence,B sell,B commit"
FENCE_LAST = "A begin,A read,A sell,B begin,B read,B sell,A fence,A commit,B fence,B commit"
OVERLAPPING = "A begin,A fence,A read,B begin,B fence,B read,A sell,A commit,B sell,B commit"
NO_FENCE = "A begin,A read,B begin,B read,A sell,A commit,B sell,B commit"


NAMES: dict[object, str] = {
    **{database: str(database) for database in [*EVERYWHERE, REFUSED]},
    NO_FENCE: "no fence",
    READ_FIRST: "read first",
    FENCE_LAST: "fence last",
    OVERLAPPING: "overlapping",
    fence: "",
    fence_in_a_savepoint: "in a savepoint",
}


@on(
    ("fenced_database", "script", "mistaken"),
    [
        (POSTGRESQL[0], NO_FENCE, fence),
        (POSTGRESQL[1], NO_FENCE, fence),
        (POSTGRESQL[0], READ_FIRST, fence),
        (POSTGRESQL[0], FENCE_LAST, fence),
        (POSTGRESQL[0], OVERLAPPING, fence_in_a_savepoint),
        (POSTGRESQL[1], OVERLAPPING, fence_in_a_savepoint),
        (MARIADB[0], NO_FENCE, fence),
        (MARIADB[0], READ_FIRST, fence),
        (MARIADB[0], FENCE_LAST, fence),
        (REFUSED, READ_FIRST, fence),
    ],
    indirect=["fenced_database"],
    ids=NAMES.get,
)
def test_a_mistaken_fence_sells_the_unit_twice(fenced_database: str, script: str, mistaken) -> None:
    """No fence, read first, fence last, a fence in a savepoint: both buyers get the one unit there is."""
    start_with_a_row(fenced_database)
    with two_players(fenced_database) as (a, b):
        play(script, a, b, mistaken)
    assert sales() == ["A", "B"]


@on("fenced_database", [POSTGRESQL[1]], indirect=True, ids=str)
def test_for_update_is_no_fence_under_repeatable_read(fenced_database: str) -> None:
    """B waits for A's row lock with a snapshot from before A's sale; A has changed nothing in the row, so B's
    statement goes through, and B reads no sale.
    """
    start_with_a_row(fenced_database, token=1)
    with two_players(fenced_database) as (a, b):
        a.does(begin)
        a.does(fence_for_update, "A")
        b._pid = b.does(b._process)
        b.does(begin)
        waiting = b.begins(fence_for_update, "B")
        assert b.is_seen_waiting()
        a.does(sell_if_not_sold, "A")
        a.does(commit)
        waiting.result(30)
        b.does(sell_if_not_sold, "B")
        b.does(commit)
    assert sales() == ["A", "B"]


def start_with_a_row(alias: str, token: int = 0) -> None:
    """Put a fence row there, as an earlier holder left it."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "INSERT INTO locking_fence (name, token, owner, mark, updated_at)"
            " VALUES ('shop', %s, 'A', '', '2026-01-01 00:00:00')",
            [token],
        )


def make_and_write(token: int) -> None:
    """Make the row in the very transaction that writes it."""
    connection = connections["fenced"]
    with connection.cursor() as cursor:
        cursor.execute(MAKE, ["shop", timestamp(connection)])
    assert _write(connection, "shop", token, f"owner {token}", "mark")


@on("fenced_database", MARIADB[:2], indirect=True, ids=str)
def test_mutant_a_row_that_is_made_inside_the_transaction_deadlocks(fenced_database: str) -> None:
    """B and C wait for the row of A, may both read it once A has committed, and wait for each other."""
    with two_players(fenced_database) as (a, b), two_players(fenced_database) as (c, _):
        for each in (a, b, c):
            each._pid = each.does(each._process)
            each.does(begin)
        a.does(make_and_write, 1)
        waiting = [b.begins(make_and_write, 2), c.begins(make_and_write, 3)]
        assert b.is_seen_waiting()
        assert c.is_seen_waiting()
        a.does(commit)
        errors = [each.exception(30) for each in waiting]
    assert [code_of(error) for error in errors if error] == [1213]


def test_the_matrix_is_whole() -> None:
    """Every isolation level that each server has is tried, or refused."""
    levels = {"read committed", "repeatable read", "serializable"}
    assert {database.isolation for database in POSTGRESQL} == levels
    assert {database.isolation for database in MARIADB} == levels
    assert Database("mariadb", "repeatable read") == REFUSED
