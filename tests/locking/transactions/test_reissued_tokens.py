"""Tokens below what a database has seen: the present holder is given a higher one, and only the holder."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group
from django.test.utils import override_settings

from locking import BackendUnavailable, StaleFencingToken, get_lock, locked_transaction
from locking.backends.base import BaseLockBackend, Grant
from locking.backends.memory import MemoryBackend
from locking.backends.redis import kinds, scripts
from locking.backends.redis.backend import RedisBackend
from locking.core.handler import locks
from locking.core.kinds import get_fair_lock, get_write_lock
from locking.core.lease import Lease, State
from locking.inspection import admin_actions
from locking.inspection.held import HeldLock, held_locks
from locking.models import Fence
from locking.transactions.fence import FORBIDDEN, HIGHEST_TOKEN, forbid
from locking.utils.ownership import new_owner
from tests.backends import REDLOCK
from tests.locking.support.helpers import committed
from tests.locking.support.redlock_nodes import client, compiled_shim, nodes

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600
AHEAD = int((time.time() + 24 * HOUR) * 1_000_000)
"""A token of a server whose clock was a day ahead: it still is when a long run comes to these tests."""


@pytest.fixture
def ahead() -> Fence:
    """The fence row of `shop` as a server left it whose clock was ahead, before it lost its data."""
    return Fence.objects.create(name="shop", token=AHEAD, owner="gone:1", mark="gone")


def sell(name: str) -> Lease:
    """Sell behind the fence."""
    with locked_transaction("shop", fenced=True, ttl=60) as lease:
        Group.objects.create(name=name)
    return lease


# --- the present holder -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("ahead")
def test_after_a_clock_that_ran_ahead_fenced_sales_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """The first holder is given a token above the database's, the next one has a higher one by itself."""
    with caplog.at_level(logging.WARNING, logger="locking"):
        tokens = [sell("first").fencing_token, sell("second").fencing_token]
    assert committed() == ["first", "second"]
    assert AHEAD < tokens[0] < tokens[1]
    (reported,) = [message for message in caplog.messages if "ran ahead" in message]
    assert f"is below {AHEAD}, which a database has seen" in reported


def test_a_real_server_whose_clock_is_set_right_after_losing_its_data(tmp_path: Path) -> None:
    """A server an hour ahead sells, is flushed and set right: the next sale isn't refused for an hour."""
    shim = compiled_shim(tmp_path)
    with tempfile.TemporaryDirectory(prefix="holdfast") as folder, nodes(Path(folder), 1, shim) as (node,):
        entry = {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": node.url}
        with override_settings(LOCKING={"default": entry}):
            node.set_clock(HOUR)
            before = sell("before").fencing_token
            client(node.waiter).flushall()
            node.set_clock(0)
            assert sell("after").fencing_token == before + 1
    assert committed() == ["after", "before"]


@pytest.mark.usefixtures("ahead")
def test_several_names_and_several_transactions_of_a_hold_go_on() -> None:
    """Each name is given a token of its own, which all further transactions of the hold carry."""
    Fence.objects.create(name="attic", token=AHEAD + 7, owner="gone:2", mark="gone")
    with get_lock("shop", "attic", fenced=True, ttl=60) as lease:
        for _ in range(2):
            with locked_transaction("shop", "attic", fenced=True):
                Group.objects.create(name=f"sale {Group.objects.count()}")
        assert [single.token for single in lease.leases] == [AHEAD + 8, AHEAD + 1]
    assert committed() == ["sale 0", "sale 1"]


@pytest.mark.usefixtures("ahead")
def test_a_write_lock_and_a_fair_lock_are_given_tokens_too() -> None:
    """Every kind of lock that one alone can hold goes on."""
    for lock in (get_write_lock("shop", fenced=True, ttl=60), get_fair_lock("shop", fenced=True, ttl=60)):
        with lock as lease:
            single = lease.leases[0]
            engine: Any = single.backend
            assert engine.reissue_token(single.key, single.owner, AHEAD) > AHEAD


# --- all others ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ahead")
def test_a_holder_whose_lock_is_gone_is_given_nothing(redis_database: redis.Redis) -> None:
    """Redis doesn't name it any more, so it is refused, and the counter stays as it was."""
    held = get_lock("shop", fenced=True, ttl=60).acquire()
    redis_database.delete("shop")
    with pytest.raises(StaleFencingToken, match=str(AHEAD)):
        sell("stale")
    assert int(redis_database.get("redisson_lock_token:{shop}") or 0) == held.fencing_token
    assert committed() == []


@pytest.mark.usefixtures("ahead")
def test_a_server_that_does_not_answer_gives_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the holder is the present one can't be known then: unavailable, and the body doesn't run."""

    def silent(*_: object) -> int:
        raise BackendUnavailable("no answer")

    monkeypatch.setattr(RedisBackend, "reissue_token", silent)
    with pytest.raises(BackendUnavailable, match="no answer"):
        sell("blind")
    assert committed() == []


def test_a_token_that_redis_could_not_count_on_from_is_not_exceeded() -> None:
    """Above 2^53 the counter stands still, and two holders would get one token: such a row refuses all."""
    Fence.objects.create(name="shop", token=HIGHEST_TOKEN, owner="gone:1", mark="gone")
    with pytest.raises(StaleFencingToken):
        sell("late")


# --- who was broken by force ------------------------------------------------------------------------------


def test_a_holder_that_was_forbidden_is_given_nothing() -> None:
    """The row names the holder that was broken: it is refused although Redis still names it too."""
    lease = get_lock("shop", fenced=True, ttl=60).acquire()
    forbid("shop", AHEAD, owner=lease.owner)
    with pytest.raises(StaleFencingToken):
        sell("broken")
    assert committed() == []


def test_after_another_holder_was_broken_sales_go_on() -> None:
    """The row of a force release, with a token from a clock ahead, doesn't stop the next holder."""
    forbid("shop", AHEAD, owner="gone:1")
    assert Fence.objects.get().owner == f"{FORBIDDEN}gone:1"
    sell("next")
    assert committed() == ["next"]


def sell_during_a_force_release(monkeypatch: pytest.MonkeyPatch, *, fence_again: bool) -> Lease:
    """Return the lease of a holder that sells between the operator's fence and his release."""
    lease = get_lock("shop", fenced=True, ttl=60).acquire()
    (shown,) = held_locks().rows
    advance, steps = admin_actions._advance_fence, iter(["before", "after"])

    def and_sell(hold: HeldLock, database: str) -> str:
        step = next(steps)
        reported = advance(hold, database) if step == "before" or fence_again else ""
        if step == "before":
            sell("in time")
        return reported

    monkeypatch.setattr(admin_actions, "_advance_fence", and_sell)
    assert admin_actions.force_release(shown, reason="test").done
    assert lease.fencing_token > AHEAD
    return lease


@pytest.mark.usefixtures("ahead")
def test_a_force_release_covers_a_token_that_was_given_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder is given a token between the operator's two steps: it is out all the same."""
    lease = sell_during_a_force_release(monkeypatch, fence_again=True)
    with pytest.raises(StaleFencingToken):
        sell("broken")
    assert lease.state is State.LOST
    assert committed() == ["in time"]


@pytest.mark.usefixtures("ahead")
def test_mutant_a_force_release_that_fences_once_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the second fence the broken holder's new token passes."""
    lease = sell_during_a_force_release(monkeypatch, fence_again=False)
    sell("broken")
    assert lease.state is State.HELD
    assert committed() == ["broken", "in time"]


# --- each engine ------------------------------------------------------------------------------------------


@pytest.fixture(params=["redis", "memory", "redlock"])
def engine(request: pytest.FixtureRequest) -> Iterator[BaseLockBackend]:
    """A backend that can give a new token."""
    if request.param == "redis":
        yield locks["default"]
        return
    entry: dict[str, Any] = {"BACKEND": f"{MemoryBackend.__module__}.{MemoryBackend.__qualname__}"}
    with ExitStack() as stack:
        if request.param == "redlock":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast"))
            made = stack.enter_context(nodes(Path(folder), 3))
            entry = {"BACKEND": REDLOCK, "LOCATION": [node.url for node in made]}
        stack.enter_context(override_settings(LOCKING={"default": entry}))
        yield locks["default"]


def test_only_the_present_holder_is_given_a_token(engine: Any) -> None:
    """Above the last one and above what was asked for; later holders get higher ones; others get none."""
    key, first, second = engine.key("reissued"), new_owner(), new_owner()
    granted = engine.try_acquire(key, first, 60.0, fenced=True)
    assert isinstance(granted, Grant)
    assert engine.reissue_token(key, second, AHEAD) == 0
    assert engine.reissue_token(key, first, AHEAD) == AHEAD + 1
    assert engine.reissue_token(key, first, 5) == AHEAD + 2
    engine.release(key, first)
    assert engine.reissue_token(key, first, AHEAD) == 0
    later = engine.try_acquire(key, second, 60.0, fenced=True)
    assert isinstance(later, Grant)
    engine.release(key, second)
    assert later.token > AHEAD + 2


def test_mutant_a_token_for_whoever_asks_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at the holder the script gives a token to one that has been passed over."""
    read, rule = scripts._read, b"redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0"
    assert rule in read("reissue_token")
    monkeypatch.setattr(scripts, "_read", lambda name: read(name).replace(rule, b"false"))
    monkeypatch.setattr(kinds, "REISSUE_TOKEN", scripts.Script("reissue_token"))
    with pytest.raises(AssertionError):
        test_only_the_present_holder_is_given_a_token(locks["default"])
