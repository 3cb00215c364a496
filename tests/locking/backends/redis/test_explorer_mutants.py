"""The explorer is worth what it finds: with one rule of the client taken out each, it has to see a violation.

A mutant is a function that takes the rule out, and the case in which that shows. Rules that live elsewhere
(the leases, the watchdog, what is released later) get theirs the same way: add a line to `MUTANTS`.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError

from locking.backends.redis import RedisBackend, protocol, scripts, waiter
from locking.backends.redis.async_transport import AsyncConnection
from locking.backends.redis.cluster import Route
from locking.backends.redis.protocol import (
    ASKING,
    ReplicaAck,
    Server,
)
from locking.backends.redis.scripts import Request, command, extend_request
from locking.backends.redis.transport import ThreadConnection, run
from locking.core import lease, renewal
from locking.core.lease import HOLDS, SingleLease
from locking.core.lock import SingleLock
from tests.locking.backends.redis.explorer import CASES, Fault, Violation
from tests.locking.backends.redis.test_explorer import explorer

__all__ = ["explorer"]


def an_incomplete_exchange_keeps_its_socket(patch):
    """A socket goes back to the idle ones whatever happened on it."""

    def put_back(self, connection, idle, *, complete):
        idle.append(connection)

    patch.setattr(Server, "put_back", put_back)


def an_error_ends_an_asking_exchange(patch):
    """An error as the answer to ASKING leaves the answer to the script unread: audit defect 2."""

    def reads_one(exchange):
        async def exchanged(connection, packet, replies):
            if not packet.startswith(ASKING):
                return await exchange(connection, packet, replies)
            (error,) = await exchange(connection, packet, 1)
            raise error

        return exchanged

    for connection in (ThreadConnection, AsyncConnection):
        patch.setattr(connection, "exchange", reads_one(connection.exchange))


def a_read_only_server_has_answered(patch):
    """A master that became a replica is not asked for on a fresh connection: audit defect 9, for locks."""
    patch.setattr(protocol, "UNREACHABLE", tuple(set(protocol.UNREACHABLE) - {ReadOnlyError}))


def another_server_was_never_asked(patch):
    """A request that a server of the cluster may have served counts as new to the next: audit defect 20."""
    never = property(lambda route: False, lambda route, was_sent: None)
    patch.setattr(Route, "was_sent", never, raising=False)


def an_idle_subscription_is_trusted(patch):
    """A subscription that died while it was idle ends the wait."""
    patch.setattr(waiter, "UNREACHABLE", ())


def a_refused_subscription_is_asked_for_again(patch):
    """SUBSCRIBE that is refused is sent again and again."""

    async def prepared(self):
        await self._abandon()
        self._subscription = await self._calls.server_of(self._key).subscribe(self._owner)
        with suppress(RedisError):
            await self._subscription.listen(self._channel() or "")
        return True

    patch.setattr(waiter.AnnouncedWaiter, "_prepared", prepared)
    patch.setattr(waiter, "PREPARATIONS", 10**6)


def one_error_for_all_leases(patch):
    """A key of another use fails the script that extends all, and that is the answer about each."""
    real = scripts._read
    patch.setattr(scripts, "_read", lambda name: real(name).replace(b"redis.pcall", b"redis.call"))
    patch.setattr(scripts, "EXTEND", scripts.Script("extend"))
    patch.setattr(
        RedisBackend,
        "extend_many",
        lambda self, leases: [answer == 1 for answer in run(self.calls.call(extend_request(leases)))],
    )


def an_unknown_answer_is_that_of_all_leases(patch):
    """One lease that isn't renewed has all of the batch count as lost: audit defect 4."""
    answers_of = renewal._answers

    def answers(*asked):
        known = answers_of(*asked)
        return known if all(known) else [False] * len(known)

    patch.setattr(renewal, "_answers", answers)


def a_release_unregisters_any_lease(patch):
    """A release takes whatever the thread holds of that name out of what is renewed: audit defect 18."""
    patch.setattr(lease, "unregister", lambda ended: HOLDS.pop(ended._hold_key, None))


def a_given_owner_is_released_as_well(patch):
    """An attempt of unknown outcome releases a hold that may be from before it: audit defect 22."""
    patch.setattr(SingleLock, "_may_undo", lambda self, first: True)


def an_unreplicated_hold_is_given_back(patch):
    """An attempt that too few replicas confirm releases also what its owner held before it."""
    patch.setattr(protocol.NotReplicated, "is_new", property(lambda error: True, lambda error, known: None))


def nothing_is_released_later(patch):
    """An acquisition whose outcome isn't known is forgotten."""
    patch.setattr("locking.core.pending_release.release_retrier.schedule", lambda *args: None)


def a_late_request_is_not_released(patch):
    """A lock that was asked for twice is released once only."""
    patch.setattr(SingleLease, "resent", property(lambda lease: False, lambda lease, known: None))


def a_late_request_is_heard(patch):
    """A channel that a late request may name in the queue goes to the next waiter."""

    async def unsubscribe(self):
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.give_back()

    patch.setattr(waiter.AnnouncedWaiter, "_unsubscribe", unsubscribe)


def a_second_release_is_no_answer(patch):
    """A release whose answer was lost counts as refused when it finds nothing any more."""
    patch.setattr(Request, "settled", lambda self, reply: reply)


def an_extension_shortens(patch):
    """The server takes whatever extension it serves last."""
    real = scripts._read
    patch.setattr(
        scripts, "_read", lambda name: real(name).replace(b"if redis.call('PTTL', key) <", b"if 0 <")
    )
    patch.setattr(scripts, "EXTEND", scripts.Script("extend"))


def a_late_request_after_giving_up_is_forgotten(patch):
    """A waiter that leaves counts as gone whatever was answered."""
    leave = waiter.AnnouncedWaiter.leave

    async def settled(self):
        await leave(self)
        self.unsettled = False

    patch.setattr(waiter.AnnouncedWaiter, "leave", settled)


def a_place_is_taken_back_by_a_release(patch):
    """A waiter that subscribes again sends a release of its owner, which may be served after its grant."""

    patch.setattr(waiter, "NO_OWNER", None)
    release_by = waiter.HandoffWaiter._release_by

    def by_its_owner(self, owner):
        return release_by(self, owner or self._owner)

    patch.setattr(waiter.HandoffWaiter, "_release_by", by_its_owner)


def a_place_is_not_withdrawn(patch):
    """A waiter that gives up stays in the queue."""

    async def dequeue_owned(self):
        return True

    patch.setattr(waiter.HandoffWaiter, "_dequeue", dequeue_owned)


def a_short_count_is_enough(patch):
    """A lock that too few replicas have counts as acquired: a failover to another one loses it."""

    async def confirm(self, connection, alias, *, is_new):
        await connection.exchange(command("WAIT", 1, self.timeout_ms).by_digest, None)

    patch.setattr(ReplicaAck, "confirm", confirm)


def a_forgotten_script_is_an_error(patch):
    """A server that was restarted, or whose scripts were flushed, is never sent their text again."""
    asked_again = Server._asked_again

    async def unless_it_is_unknown(self, connection, request, error):
        if isinstance(error, NoScriptError):
            raise error
        return await asked_again(self, connection, request, error)

    patch.setattr(Server, "_asked_again", unless_it_is_unknown)


MUTANTS = {
    an_incomplete_exchange_keeps_its_socket: "lock, free",
    an_error_ends_an_asking_exchange: "cluster, asks in vain",
    a_read_only_server_has_answered: "lock, free",
    another_server_was_never_asked: "cluster, fails over",
    an_idle_subscription_is_trusted: "write, waits again",
    a_refused_subscription_is_asked_for_again: "lock, behind Java unheard",
    one_error_for_all_leases: "lock, renewed beside another",
    an_unknown_answer_is_that_of_all_leases: "lock, renewed beside another",
    a_release_unregisters_any_lease: "lock, released again",
    a_given_owner_is_released_as_well: "lock, given owner",
    an_unreplicated_hold_is_given_back: "lock, given owner, no replica acknowledges",
    nothing_is_released_later: "lock, free",
    a_place_is_not_withdrawn: "lock, in vain",
    a_late_request_is_not_released: "lock, free",
    a_late_request_is_heard: "lock, in vain",
    a_second_release_is_no_answer: "lock, free",
    an_extension_shortens: "lock, extended while renewed",
    a_place_is_taken_back_by_a_release: "lock, waits again",
    a_late_request_after_giving_up_is_forgotten: "lock, free once given up",
    a_short_count_is_enough: "lock, new owner, no replica acknowledges",
    a_forgotten_script_is_an_error: "lock, free",
}
"""By the rule that is taken out; audit defects 2, 9, 15, 19, 4 first."""

ONLY_THREADS = {
    one_error_for_all_leases,
    an_unknown_answer_is_that_of_all_leases,
    a_release_unregisters_any_lease,
    an_extension_shortens,
}


ONLY_TASKS = {a_place_is_taken_back_by_a_release}
"""One fault shows it to tasks only."""

TWO_FAULTS = {another_server_was_never_asked}
"""The answer is lost, and then the server."""


FOUND_OUT = [
    *((mutant, name, "threads") for mutant, name in MUTANTS.items() if mutant not in ONLY_TASKS),
    *((mutant, name, "asyncio") for mutant, name in MUTANTS.items() if mutant not in ONLY_THREADS),
]


@pytest.mark.parametrize(
    ("mutant", "name", "driver"), FOUND_OUT, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_client_without_a_rule_is_found_out(explorer, monkeypatch, mutant, name, driver):
    """The rule taken out, one fault or none shows it, in a few cases two."""
    case = next(each for each in CASES if each.name == name)
    exploring = explorer(case, driver)
    mutant(monkeypatch)
    with pytest.raises(Violation):
        exploring.explore(depth=2 if mutant in TWO_FAULTS else 1, second={Fault.CLOSED})
