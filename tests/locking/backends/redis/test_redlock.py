"""Redlock beyond the contract: silent servers, pending releases, tokens, and its three known failures."""

import tempfile
import threading
from collections import deque
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test.utils import override_settings
from redis.connection import UnixDomainSocketConnection

from locking import BackendUnavailable, LockError, get_lock, locked_transaction
from locking.backends.base import Busy, Grant
from locking.backends.redlock import Node, RedlockBackend, ask_all
from locking.core.handler import locks
from locking.core.pending_release import release_retrier
from locking.inspection.held import held_locks
from locking.testing.contract.base import begin
from locking.utils.ownership import new_owner
from tests.backends import REDLOCK, any_engine
from tests.locking.backends.redis.test_redis_faults import Interrupting
from tests.locking.support.helpers import is_answered
from tests.locking.support.redlock_nodes import PATIENCE, client, compiled_shim, nodes, until

TTL = 60.0


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The library that moves a server's clock."""
    return compiled_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def three():
    """Three nodes with true clocks, and `LOCKING` on them."""
    with tempfile.TemporaryDirectory(prefix="holdfast") as folder, nodes(Path(folder), 3) as made, on(made):
        yield made


@pytest.fixture
def skewed(shim):
    """Three nodes whose clocks can be set."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast") as folder,
        nodes(Path(folder), 3, shim) as made,
        on(made),
    ):
        yield made


def on(made, **options):
    """The default alias on these nodes."""
    options = {"node_timeout": PATIENCE, **options}
    entry = {"BACKEND": REDLOCK, "LOCATION": [node.url for node in made], "OPTIONS": options}
    return override_settings(LOCKING={"default": entry})


def test_a_hanging_server_is_treated_like_a_dead_one(three):
    """A frozen server costs no caller the lock, and what it grants when it wakes is undone."""
    with on(three, node_timeout=1.0):
        three[2].pause()
        with get_lock("hang", ttl=TTL):
            assert three[0].knows("hang")
            three[2].resume()
        until(lambda: _is_clean(three, "hang"), "servers without a pending release")


def _is_clean(made, name):
    """Whether no server knows the lock; asking has the backend talk to them, and so pay what it owes."""
    locks["default"].holder(name)
    return not any(node.knows(name) for node in made)


def test_too_few_grants_are_given_back(three):
    """With a minority of servers no caller gets the lock, and nothing of the attempt stays behind."""
    three[1].kill()
    three[2].kill()
    with pytest.raises(BackendUnavailable, match=r"2 of 3 Redis servers .* don't answer, and 2 must"):
        get_lock("few", ttl=TTL, wait=0.1).acquire()
    assert not three[0].knows("few")


def test_a_split_vote_leaves_nothing(three):
    """Where others have a majority's worth of votes the asker gives its own vote back."""
    for node, owner in ((three[1], new_owner()), (three[2], new_owner())):
        client(node.waiter).hset("split", owner, 1)
        client(node.waiter).pexpire("split", 60_000)
    assert get_lock("split", ttl=TTL).try_acquire() is None
    assert not three[0].knows("split")
    assert locks["default"].holder("split") is None


def test_what_a_majority_lists_is_listed(three):
    """A hold that only one server has left is none; one server that is gone hides nothing, two hide all."""
    lease, lost = get_lock("listed", ttl=TTL).acquire(), get_lock("forgotten", ttl=TTL).acquire()
    for node in three[:2]:
        client(node.waiter).delete("forgotten")
    any_engine().publish_heartbeats({"me": "{}"})
    three[0].kill()
    (row,) = held_locks().rows
    assert (row.name, row.owner, row.token) == ("listed", lease.owner, lease.fencing_token)
    assert 0 < (row.remaining or 0.0) <= TTL
    assert any_engine().heartbeats(["me"])["me"].text == "{}"
    three[1].kill()
    page = held_locks()
    assert (page.rows, [problem.unsupported for problem in page.problems]) == ([], [False])
    lease.leave_to_expire()
    lost.leave_to_expire()


def test_a_holder_goes_on_without_a_minority(three):
    """A lease is extended, and released, by the majority that still answers."""
    with get_lock("minority", ttl=TTL) as lease:
        three[0].kill()
        lease.extend(TTL)
        lease.ensure_held()
    assert not get_lock("minority").locked()


def granted_after_pending(three, monkeypatch):
    """Grant a lock at its third try; in the first two one server each was silent, and another had the lock.

    Returns:
        The owner of the grant.
    """
    monkeypatch.setattr("locking.backends.redlock.SETTLING", 3600.0)
    monkeypatch.setattr("locking.backends.redlock.LEFT_ALONE", 0.0)
    backend = locks["default"]
    assert isinstance(backend, RedlockBackend)
    assert backend.holder("debts") is None  # each has a connection now, which a silent one can't open
    place = backend.waiter("debts", new_owner(), TTL)
    assert client(three[0].waiter).hset("debts", new_owner(), 1)
    client(three[0].waiter).pexpire("debts", 60_000)
    for silent in (three[1], three[2]):
        silent.pause()
        assert isinstance(tried(backend, place, monkeypatch), Busy)
        silent.resume()
        client(silent.waiter).ping()
    client(three[0].waiter).delete("debts")
    assert isinstance(place.try_acquire(queue=True), Grant)
    for node in backend.nodes:  # the time to settle is over
        node._pending = deque(undo._replace(due=0.0) for undo in node._pending)
    return place.owner


def tried(backend, place, monkeypatch):
    """Return what two servers of three say; they have longer where a busy machine kept one from answering."""
    for timeout in (1.0, 4.0, 16.0):
        monkeypatch.setattr(backend, "_timeout", timeout)
        with suppress(BackendUnavailable):
            return place.try_acquire(queue=True)
    raise AssertionError("two servers did not answer")


def test_what_earlier_tries_left_to_undo_does_not_undo_a_grant(three, monkeypatch):
    """Releases of earlier tries that servers carry out late leave the grant of a later try alone."""
    owner = granted_after_pending(three, monkeypatch)
    backend = locks["default"]
    assert isinstance(backend.try_acquire("debts", new_owner(), TTL), Busy)
    assert isinstance(backend.try_acquire("debts", new_owner(), TTL), Busy)
    assert all(client(node.waiter).hexists("debts", owner) for node in three)


def test_one_owner_for_all_tries_is_caught(three, monkeypatch):
    """The mutant of the test above: with one owner, and debts that a grant does not cancel, two hold it."""
    monkeypatch.setattr("locking.backends.redlock.owner_of_try", lambda owner, attempts: owner)
    monkeypatch.setattr(Node, "cancel", lambda *_: None)
    granted_after_pending(three, monkeypatch)
    rivals = [locks["default"].try_acquire("debts", new_owner(), TTL) for _ in range(2)]
    assert any(isinstance(outcome, Grant) for outcome in rivals)


def test_a_grant_cancels_what_the_same_owner_left_to_undo(three, monkeypatch):
    """A caller of the backend itself that repeats its request with one owner keeps what it is granted."""
    monkeypatch.setattr("locking.backends.redlock.owner_of_try", lambda owner, attempts: owner)
    owner = granted_after_pending(three, monkeypatch)
    assert isinstance(locks["default"].try_acquire("debts", new_owner(), TTL), Busy)
    assert all(client(node.waiter).hexists("debts", owner) for node in three)


def test_a_lease_has_the_owner_of_the_try_that_was_granted(three):
    """A lock that was granted at a later try is extended and released as the owner of that try."""
    client(three[0].waiter).hset("later", new_owner(), 1)
    client(three[1].waiter).hset("later", new_owner(), 1)
    lock = get_lock("later", ttl=TTL, wait=PATIENCE)

    def hold():
        with lock as lease:
            lease.extend(TTL)
            holder = locks["default"].holder("later")
            return holder is not None and holder.owner == lease.owner

    waiting = begin(hold)
    for node in three[:2]:
        client(node.waiter).delete("later")
    assert waiting.result(timeout=PATIENCE)
    assert not any(node.knows("later") for node in three)


def test_a_foreign_value_costs_no_other_lease_its_renewal(three):
    """On every server one of nine keys is no lock: that lease is lost, and the others are extended."""
    backend, owner = locks["default"], new_owner()
    names = [f"many:{number}" for number in range(9)]
    for name in names:
        backend.try_acquire(name, owner, TTL)
    for node in three:
        client(node.waiter).delete("many:4")
        client(node.waiter).set("many:4", "no lock")
    answers = backend.extend_many([(name, owner, TTL) for name in names])
    assert answers == [name != "many:4" for name in names]


def test_a_server_that_refuses_writes_is_asked_once_for_all_leases(three, monkeypatch):
    """Its refusal is of every lease: to ask again for fewer of them would be in vain."""
    backend, owner = locks["default"], new_owner()
    names = [f"many:{number}" for number in range(9)]
    for name in names:
        backend.try_acquire(name, owner, TTL)
    client(three[2].waiter).config_set("min-replicas-to-write", 1)
    asked = mock.Mock(wraps=ask_all)
    monkeypatch.setattr("locking.backends.redlock.ask_all", asked)
    assert backend.extend_many([(name, owner, TTL) for name in names]) == [True] * 9
    asked.assert_called_once()


def test_what_cannot_be_undone_costs_no_other_lock_a_vote(three):
    """A release that a server still owes, of a key that holds something else by now, does not silence it."""
    backend, owner = locks["default"], new_owner()
    assert isinstance(backend, RedlockBackend)
    backend.nodes[0].undo_later(backend._kind.release("owed", owner))
    client(three[0].waiter).set("owed", "no lock")
    three[1].kill()
    assert isinstance(backend.try_acquire("other", owner, TTL), Grant)
    client(three[0].waiter).delete("owed")
    client(three[0].waiter).hset("owed", owner, 1)
    until(lambda: backend.holder("other") and not three[0].knows("owed"), "the release that was owed")


@pytest.fixture
def interrupting(three, monkeypatch):
    """The counter of the steps of all conversations with the three servers; nothing is released later."""
    monkeypatch.setattr(release_retrier, "schedule", lambda *_: None)
    backend, made = locks["default"], Interrupting(UnixDomainSocketConnection, None)
    assert isinstance(backend, RedlockBackend)
    for node in backend.nodes:
        server: Any = node.backend.calls
        server.make.args[0].connection_class = made.connection_class
    return made


def interrupt_each_step(three, interrupting):
    """Interrupt an acquisition at each step; every server must have granted the one that follows."""
    for step in range(1, 25):
        interrupting.left = step
        with suppress(KeyboardInterrupt):
            get_lock(f"interrupted:{step}", ttl=TTL).acquire().release()
        interrupting.left = None
        with get_lock(f"next:{step}", ttl=TTL) as lease:
            for node in three:
                assert client(node.waiter).hkeys(f"next:{step}") == [lease.owner.encode()]


def test_an_interruption_leaves_no_answer_behind(three, interrupting):
    """Ctrl-C at any step of an acquisition leaves no answer that the next one takes for a vote."""
    interrupt_each_step(three, interrupting)


def test_a_socket_that_is_kept_after_an_interruption_is_caught(three, interrupting, monkeypatch):
    """The mutant of the test above: the answer to the interrupted request counts as the next one's."""
    read = Node.read

    def read_and_keep(node, asked, request, deadline):
        try:
            return read(node, asked, request, deadline)
        except BaseException:
            node.server.idle.append(asked.connection)
            raise

    monkeypatch.setattr("locking.backends.redlock.closed_on_failure", nullcontext)
    monkeypatch.setattr(Node, "read", read_and_keep)
    with pytest.raises((AssertionError, LockError)):
        interrupt_each_step(three, interrupting)


def test_a_release_that_no_client_can_confirm_is_not_called_a_success(three):
    """When the silent servers would decide it the answer is BackendUnavailable."""
    backend, owner = locks["default"], new_owner()
    backend.try_acquire("unsure", owner, TTL)
    three[0].kill()
    three[1].kill()
    with pytest.raises(BackendUnavailable):
        backend.release("unsure", owner)


def test_servers_are_sent_a_longer_lease_than_the_holder(three):
    """The drift of clocks is on the servers' side: the holder's lease is the first to end."""
    with get_lock("drift", ttl=TTL) as lease:
        left = min(client(node.waiter).pttl("drift") for node in three) / 1000
        assert left > lease.remaining()
        assert lease.remaining() <= TTL


def test_tokens_rise_from_majority_to_majority(skewed):
    """A majority with slow clocks mints a higher token than an earlier one whose clock was ahead."""
    backend, first, second = locks["default"], new_owner(), new_owner()
    skewed[0].set_clock(3600)
    skewed[2].kill()
    early = backend.try_acquire("tokens", first, TTL, fenced=True)
    assert isinstance(early, Grant)
    backend.release("tokens", first)
    skewed[2].start()
    skewed[0].kill()
    outcome = _granted(backend, "tokens", second)
    assert outcome.token > early.token


def _granted(backend, key, owner):
    found = []

    def ask():
        with suppress(BackendUnavailable):
            outcome = backend.try_acquire(key, owner, TTL, fenced=True)
            found.extend([outcome] if isinstance(outcome, Grant) else [])
        return found

    until(ask, "a grant")
    return found[0]


# --- the known failures -----------------------------------------------------------------------------------
#
# In each, A gets the lock from the servers 0 and 1 while 2 is down. Then 1 forgets it, one way or another,
# and 2 comes back: B gets the lock from 1 and 2 while A still holds it.


def lost_persistence(made):
    """The server restarts, and remembers nothing."""
    made[1].kill()
    made[1].start()


def replica_failover(made):
    """A replica takes over that had lost touch with its master before the lock was taken."""
    (replica,) = made[1].replicas
    made[1].kill()
    client(replica).replicaof("NO", "ONE")
    made[1].put(replica)


def clock_jump(made):
    """The server's clock jumps by an hour: every lease there has ended."""
    made[1].set_clock(3600)


FAILURES = [lost_persistence, replica_failover, clock_jump]


@pytest.fixture
def shop(postgresql_locks, django_db_blocker):
    """The alias of a database with one piece to sell."""
    alias = postgresql_locks["OPTIONS"]["using"]
    with django_db_blocker.unblock():
        _execute(alias, "CREATE TABLE redlock_sale (buyer varchar(20) NOT NULL)")
        yield alias
        _execute(alias, "DROP TABLE redlock_sale")
        connections[alias].close()


def _execute(alias, statement, *arguments):
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, arguments)


def _count(alias, statement):
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def _sell(alias, buyer, fenced, between=lambda: None):
    """Read whether the piece is there, and sell it if it was, all under the lock."""
    try:
        with locked_transaction("piece", using=alias, ttl=TTL, wait=PATIENCE, fenced=fenced):
            sold = _count(alias, "SELECT COUNT(*) FROM redlock_sale")
            between()
            if not sold:
                _execute(alias, "INSERT INTO redlock_sale (buyer) VALUES (%s)", buyer)
    finally:
        connections[alias].close()


@pytest.mark.parametrize("fenced", [False, True], ids=["without the fence", "fenced"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_known_failure_oversells_unless_it_is_fenced(skewed, shop, failure, fenced):
    """Two holders at once sell one piece twice; behind the fence the database lets one of them sell."""
    _detach_a_replica(skewed[1])
    skewed[2].kill()
    has_read, may_go_on = threading.Event(), threading.Event()

    def pause():
        has_read.set()
        assert may_go_on.wait(PATIENCE)

    slow = begin(lambda: _sell(shop, "A", fenced, pause))
    assert has_read.wait(PATIENCE), slow.exception(timeout=1)
    failure(skewed)
    skewed[2].start()
    quick = begin(lambda: _try_until_up(shop, "B", fenced))
    until(lambda: quick.done() or (fenced and _has_waiters(shop)), "B sells, or waits at the fence")
    may_go_on.set()
    slow.result(timeout=PATIENCE)
    quick.result(timeout=PATIENCE)
    assert _count(shop, "SELECT COUNT(*) FROM redlock_sale") == (1 if fenced else 2)


def _detach_a_replica(master):
    """Give the node a replica that copies it, and then loses touch with it."""
    replica = master.start(in_place=False)
    client(replica).replicaof("127.0.0.1", 1)  # where no server listens: it has copied nothing since
    master.replicas = [replica]


def _try_until_up(alias, buyer, fenced):
    """Sell, asking again while servers that were down are still left alone."""
    until(lambda: is_answered(partial(_sell, alias, buyer, fenced)), "servers that are asked again")


def _has_waiters(alias):
    waits = _count(
        alias,
        "SELECT COUNT(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    return waits > 0


def test_a_server_that_restarted_abstains(three):
    """With `restart_delay` a server that forgot its locks has no vote until they have all ended."""
    with on(three, restart_delay=3000.0), pytest.raises(BackendUnavailable, match="abstains for 3000 s"):
        get_lock("abstain", ttl=TTL, wait=0.1).acquire()


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("redis://localhost", "must be a list"),
        (["redis://a", "redis://b"], "names 2"),
        (["redis://a", "redis://b", "redis://a"], "names a server twice"),
    ],
)
def test_a_location_that_is_no_majority_is_refused(location, message):
    """Fewer than three votes, or two of one server, are no quorum."""
    with (
        override_settings(LOCKING={"default": {"BACKEND": REDLOCK, "LOCATION": location}}),
        pytest.raises(ImproperlyConfigured, match=message),
    ):
        locks["default"]


def test_the_checks_tell_what_endangers_a_majority(three):
    """An even number of servers, and servers that forget, are reported."""
    with on([*three, three[0]]) as _, pytest.raises(ImproperlyConfigured):
        locks["default"]
    four = ["redis://a", "redis://b", "redis://c", "redis://d"]
    with override_settings(LOCKING={"default": {"BACKEND": REDLOCK, "LOCATION": four}}):
        assert [message.id for message in locks["default"].check()] == ["locking.W004"]
    with on(three):
        assert {message.id for message in locks["default"].check(live=True)} == {"locking.W111"}
    with on(three, restart_delay=1.0):
        assert locks["default"].check(live=True) == []
