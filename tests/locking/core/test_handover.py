"""A held lock is passed to another process by a ticket, which works once."""

import asyncio
import threading
from secrets import token_hex
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import Group
from django.db.transaction import on_commit
from django.utils.module_loading import import_string

from locking import (
    BackendUnavailable,
    Lease,
    LockKeyError,
    LockLost,
    LockNotOwned,
    LockNotSupported,
    aadopt,
    adopt,
    ahand_over,
    current_lease,
    distributed_lock,
    get_lock,
    get_semaphore,
    get_write_lock,
    hand_over,
    locked_transaction,
)
from locking.backends.etcd.backend import EtcdBackend
from locking.backends.memory.backend import Locks
from locking.core.handler import locks
from locking.core.handover import AdoptedLease, Part
from locking.core.lease import State
from locking.testing.contract.processes import child
from tests.backends import BACKENDS
from tests.locking.support.helpers import committed, elsewhere

pytestmark = pytest.mark.django_db(transaction=True)

ENGINES = [
    row for row, backend in BACKENDS.items() if import_string(backend.settings["BACKEND"]).supports_handover
]


@pytest.fixture(params=ENGINES)
def engine(request: Any, settings: Any) -> Any:
    """Each kind of engine that can hand a lock over."""
    entry = {**BACKENDS[request.param].reached(request), "KEY_PREFIX": f"ticket-{token_hex(4)}:"}
    settings.LOCKING = {"default": entry}
    return locks["default"]


def given(name: str = "a", **options: Any) -> tuple[str, Lease]:
    """A ticket, and the lease that it was made of."""
    with get_lock(name, **options) as lease:
        return hand_over(lease), lease


def leave(taken: Lease) -> None:
    """Leave the block of an adopted lease."""
    with taken:
        pass


def aleave(taken: Lease) -> None:
    """The same on an event loop."""

    async def scenario() -> None:
        async with taken:
            pass

    asyncio.run(scenario())


RELEASES = [leave, aleave]


def is_free(name: str = "a") -> bool:
    lease = elsewhere(get_lock(name).try_acquire)
    if lease is not None:
        elsewhere(lease.release)
    return lease is not None


def test_the_taker_continues_the_hold(engine: Any) -> None:
    """Same owner, same token, renewed again; the giver's block releases nothing, the taker's does."""
    ticket, lease = given()
    assert (lease.state, is_free()) == (State.RELEASED, False)
    with adopt(ticket) as taken:
        assert (taken.owner, taken.fencing_token, taken.names) == (lease.owner, lease.fencing_token, ("a",))
        assert taken.leases[0].renewed
        assert not is_free()
        with get_lock("a", wait=0):  # a re-entry
            taken.ensure_held()
        assert not is_free()
    assert is_free()


def test_a_ticket_works_once(engine: Any) -> None:
    """A message that is delivered twice runs one task: while that runs, and after it has ended."""
    ticket, _ = given()
    with adopt(ticket), pytest.raises(LockNotOwned, match="adopted already"):
        elsewhere(lambda: adopt(ticket))
    with pytest.raises(LockLost, match="held no more"):
        adopt(ticket)
    assert is_free()


def test_mutant_without_a_claim_two_takers_hold_one_lock(engine: Any, monkeypatch: Any) -> None:
    """Each claim under another name is no claim."""
    number = iter(range(9))

    monkeypatch.setattr(Part, "claim", lambda part: get_lock(f"claim:{next(number)}"))
    ticket, _ = given()
    first = adopt(ticket)
    second = elsewhere(lambda: adopt(ticket))
    assert (first.remaining() > 0, second.remaining() > 0) == (True, True)
    first.release()
    with pytest.raises(LockLost):
        second.release()


async def test_a_coroutine_hands_over_to_another(engine: Any) -> None:
    """As threads do: same owner and token, once per ticket, released at the end of the block."""
    lease = await get_lock("a").aacquire()
    ticket = await ahand_over(lease)
    async with await aadopt(ticket) as taken:
        assert (taken.owner, taken.fencing_token) == (lease.owner, lease.fencing_token)
        await taken.aextend(20)
        with pytest.raises(LockNotOwned, match="adopted already"):
            await asyncio.create_task(aadopt(ticket))
        assert await asyncio.create_task(get_lock("a").atry_acquire()) is None
    assert not await get_lock("a").alocked()
    with pytest.raises(LockLost, match="held no more"):
        await aadopt(ticket)
    assert not await get_lock(f"handed-over:{lease.owner}").alocked()


def test_an_adopted_permit_leaves_the_others_alone(engine: Any) -> None:
    """The ticket says nothing of how many permits there are: the semaphore keeps its number."""
    if "semaphore" not in engine.kinds:
        pytest.skip("no semaphores")
    first = get_semaphore("a", permits=2).acquire()
    with adopt(hand_over(first)) as taken:
        taken.extend(30)
        second = elsewhere(get_semaphore("a", permits=2).acquire)
        assert elsewhere(get_semaphore("a", permits=2).try_acquire) is None
        second.release()


def test_another_process_takes_it(redis_database: Any) -> None:
    """Forked, as a Celery worker is another one; the claim is its own."""
    ticket, lease = given("order:7")

    def work(pipe: Any) -> None:
        with adopt(ticket) as taken:
            pipe.send(taken.fencing_token)
            pipe.recv()
        pipe.send("released")

    with child(work) as taker:
        assert taker.report() == lease.fencing_token
        assert not is_free("order:7")
        taker.pipe.send("go on")
        assert taker.report() == "released"
    assert is_free("order:7")


@pytest.mark.usefixtures("memory_locks")
class TestInMemory:
    """What doesn't depend on the engine."""

    def test_a_ticket_that_was_adopted_too_late_is_worth_nothing(self) -> None:
        """The lock may be another's by then; nothing is left of the claim."""
        ticket, lease = given()
        locks["default"].release(lease.key, lease.owner)
        with get_lock("a"), pytest.raises(LockLost, match="held no more"):
            elsewhere(lambda: adopt(ticket))
        assert is_free(f"handed-over:{lease.owner}")

    def test_several_names_are_handed_over_together(self) -> None:
        """One ticket; if one of them was lost, none is held afterwards."""
        with get_lock("b", "a") as lease:
            ticket = hand_over(lease)
        with adopt(ticket) as taken:
            assert taken.names == ("a", "b")
        with get_lock("b", "a") as lease:
            ticket = hand_over(lease)
        locks["default"].release(lease.leases[1].key, lease.leases[1].owner)
        with pytest.raises(LockLost):
            adopt(ticket)
        assert is_free("a")

    @pytest.mark.parametrize("make", [get_write_lock, lambda name: get_semaphore(name, permits=1)])
    def test_other_kinds_are_handed_over_too(self, make: Any) -> None:
        """The ticket names the kind."""
        with make("a") as lease:
            ticket = hand_over(lease)
        assert elsewhere(make("a").try_acquire) is None
        adopt(ticket).release()
        assert elsewhere(make("a").try_acquire) is not None

    def test_a_transaction_hands_over_after_its_commit(self) -> None:
        """No gap: the lock is never free between the COMMIT and the task."""
        tickets: list[str] = []
        with locked_transaction("a") as lease:
            Group.objects.create(name="sold")
            on_commit(lambda: tickets.append(hand_over(lease)))
        assert (committed(), is_free()) == (["sold"], False)
        adopt(tickets[0]).release()
        assert is_free()

    def test_a_decorated_function_of_the_same_name_joins_the_adopted_lease(self) -> None:
        """It re-enters the lock, opens its transaction and leaves the lock to the block around it."""

        @distributed_lock(key="'a'", wait=0)
        def work() -> str:
            return "done"

        ticket, _ = given()
        with adopt(ticket):
            assert work() == "done"
            assert not is_free()

    def test_a_lost_claim_is_a_lost_lease(self) -> None:
        """A taker that was paused for longer than its claim lasts learns it from the local clock."""
        ticket, _ = given()
        taken = adopt(ticket, ttl=30)
        assert isinstance(taken, AdoptedLease)
        (claim,) = taken._claims
        assert claim.ttl == 90
        claim.lose()
        with pytest.raises(LockLost):
            taken.ensure_held()

    def adopt_after_a_lost_release(self, release: Any) -> None:
        """Release what was adopted without an answer for the hold, and adopt the ticket again."""
        ticket, _ = given()
        taken = adopt(ticket)
        hold, released = taken.leases[0], Locks.release

        def unanswered(held: Locks, key: str, owner: str, kind: str = "lock") -> bool:
            if owner == hold.owner:
                raise BackendUnavailable("no answer")
            return released(held, key, owner, kind)

        with mock.patch.object(Locks, "release", unanswered):
            release(taken)
        adopt(ticket, ttl=5).release()

    @pytest.mark.parametrize("release", RELEASES)
    def test_a_hold_that_may_live_on_keeps_its_claim(self, release: Any) -> None:
        """The hold's release was not answered: a second delivery of the ticket is refused meanwhile."""
        with pytest.raises(LockNotOwned, match="adopted already"):
            self.adopt_after_a_lost_release(release)

    def test_mutant_a_claim_that_is_released_before_its_hold_lets_a_ticket_work_twice(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The work of the ticket is done again, under the hold that the first taker couldn't release."""
        monkeypatch.setattr(AdoptedLease, "_free_claims", lambda taken: taken._claims)
        self.adopt_after_a_lost_release(leave)

    async def test_a_ticket_works_once_in_one_thread_or_task_too(self) -> None:
        """Who has adopted it and gets it again, as a worker does by a second delivery, is refused as well."""
        ticket, _ = await asyncio.to_thread(given)
        for adopt_again in (self.adopt_in_this_thread, self.adopt_in_this_task):
            with pytest.raises(LockNotOwned, match="adopted already"):
                await adopt_again(ticket)

    async def adopt_in_this_thread(self, ticket: str) -> None:
        """Adopt a ticket twice and release."""

        def twice() -> None:
            with adopt(ticket):
                adopt(ticket)

        await asyncio.to_thread(twice)

    async def adopt_in_this_task(self, ticket: str) -> None:
        """The same for asyncio, with a ticket of its own."""
        ticket, _ = await asyncio.to_thread(given, "b")
        async with await aadopt(ticket):
            await aadopt(ticket)

    def test_a_release_that_is_tried_again_ends_the_hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After an outage the taker may release once more."""
        ticket, _ = given()
        taken, engine = adopt(ticket), locks["default"]
        with monkeypatch.context() as patch, pytest.raises(BackendUnavailable):
            patch.setattr(engine, "release", mock.Mock(side_effect=BackendUnavailable("no answer")))
            taken.release()
        taken.release()
        assert is_free()

    def test_extending_keeps_the_claim_ahead(self) -> None:
        """While the hold may live there is a claim."""
        ticket, _ = given()
        taken = adopt(ticket, ttl=5)
        taken.extend(60)
        assert isinstance(taken, AdoptedLease)
        assert taken._claims[0].remaining() > 2 * taken.leases[0].remaining() > 100
        taken.release()

    async def test_a_coroutine_gives_and_takes(self) -> None:
        """The lease of a task; its end is awaited."""
        async with get_lock("a") as lease:
            ticket = hand_over(lease)
        async with await aadopt(ticket) as taken:
            await taken.aextend(20)
            assert taken.remaining() > 10
        assert is_free()

    async def test_a_cancelled_taker_leaves_the_ticket_to_the_next(self, monkeypatch: Any) -> None:
        """It waits for its request, so that nothing of it comes after the claim was released."""
        lease = await get_lock("a").aacquire()
        ticket = await ahand_over(lease)
        asked, answer, steps = threading.Event(), threading.Event(), list[str]()
        adopt_hold, release = locks["default"].adopt, locks["default"].arelease

        def slowly(*hold: Any) -> bool:
            asked.set()
            answer.wait(20)
            held = adopt_hold(*hold)
            steps.append("adopted")
            return held

        async def noted(key: str, owner: str) -> bool:
            steps.append("released")
            return await release(key, owner)

        monkeypatch.setattr(locks["default"], "adopt", slowly)
        monkeypatch.setattr(locks["default"], "arelease", noted)
        taker = asyncio.create_task(aadopt(ticket))
        await asyncio.to_thread(asked.wait, 20)
        taker.cancel()
        asyncio.get_running_loop().call_later(0.05, answer.set)
        with pytest.raises(asyncio.CancelledError):
            await taker
        assert steps == ["adopted", "released"]
        await (await aadopt(ticket)).arelease()
        assert is_free()

    def test_what_cannot_be_handed_over_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An inner block, a lease that was adopted, an engine whose holds end with their process."""
        with get_lock("a"), get_lock("a") as inner, pytest.raises(LockNotOwned, match="entered 2 times"):
            hand_over(inner)
        ticket, _ = given()
        with adopt(ticket) as taken, pytest.raises(LockNotSupported, match="handed over once"):
            hand_over(taken)
        monkeypatch.setattr(type(locks["default"]), "supports_handover", False)
        with get_lock("a") as lease, pytest.raises(LockNotSupported, match="hand a held lock over"):
            hand_over(lease)

    @pytest.mark.parametrize("ticket", ["", "a:b:c", "WyJhIl0:1:2"])
    def test_a_forged_ticket_is_refused(self, ticket: str) -> None:
        """It is signed with SECRET_KEY."""
        with pytest.raises(LockKeyError, match="is not a ticket"):
            adopt(ticket)

    def test_a_lock_that_is_left_to_its_ttl_may_be_handed_over(self) -> None:
        """The end of the decorated function changes nothing of what its body gave away."""
        tickets: list[str] = []

        @distributed_lock(key="'a'", release=False, ttl=5, atomic=False)
        def work() -> None:
            tickets.append(hand_over(current_lease(), ttl=60))

        work()
        adopt(tickets[0]).release()
        assert is_free()


class TestOnEtcd:
    """Its leases keep the length that they began with, and its holders end them: each process its own."""

    @pytest.fixture(autouse=True)
    def etcd(self, settings: Any, request: pytest.FixtureRequest) -> EtcdBackend:
        """The backend."""
        entry = {**BACKENDS["etcd"].reached(request), "KEY_PREFIX": f"ticket-{token_hex(4)}:"}
        settings.LOCKING = {"default": entry}
        backend = locks["default"]
        assert isinstance(backend, EtcdBackend)
        return backend

    def test_a_late_renewal_of_the_giver_changes_nothing(self, etcd: EtcdBackend) -> None:
        """The key stays with the taker's lease: the giver's is revoked as soon as the hold was adopted."""
        assert self.lease_after_a_late_renewal(etcd) == "the taker's"

    def test_mutant_a_giver_whose_lease_lives_on_takes_the_key_back(
        self, etcd: EtcdBackend, monkeypatch: Any
    ) -> None:
        """That lease would then end, and the taker's hold with it."""
        monkeypatch.setattr(etcd._client, "revoke", lambda lease: True)
        assert self.lease_after_a_late_renewal(etcd) == "the giver's"

    def lease_after_a_late_renewal(self, etcd: EtcdBackend) -> str:
        """Whose lease on etcd the key is bound to, after a renewal that began before the hand-over."""
        lease = get_lock("a", ttl=60).acquire()
        hold = etcd._holds.begin(lease.key, lease.owner)  # as a renewal does, before it waits for its turn
        assert hold is not None
        ticket = hand_over(lease)
        taken = adopt(ticket)
        etcd._prolonged(hold, lease.owner, 60.0)
        entry = etcd._line(lease.key).by(lease.owner)
        assert entry is not None
        found = "the giver's" if entry.lease == hold.session else "the taker's"
        taken.release()
        return found

    def test_a_ticket_that_nobody_adopts_ends_when_it_says(self, etcd: EtcdBackend) -> None:
        """Also that of a lease that was longer: etcd, and not the giver, ends it."""
        lease = get_lock("a", ttl=3600).acquire()
        hand_over(lease, ttl=20)
        assert len(etcd._holds) == 0
        holder = etcd.holder(lease.key)
        assert holder is not None
        assert holder.remaining is not None
        assert holder.remaining <= 21
        etcd.force_release(lease.key, lease.owner)
