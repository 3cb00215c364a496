"""A lease from its acquisition to its end, and the re-entry table."""

import gc
import logging
import threading
import weakref
from contextlib import suppress

import pytest

from locking import BackendUnavailable, Lease, LockLost, LockNotOwned, assert_locked, get_lock
from locking.backends.memory import STORES
from locking.core.handler import locks
from locking.core.lease import HOLDS, SingleLease, State, _changing, live_leases, unregister
from locking.core.renewal import renew
from locking.testing import held_locks, simulate_loss
from locking.testing.contract.base import elsewhere, until
from locking.testing.contract.processes import child
from locking.utils.clock import now
from locking.utils.ownership import current_context
from tests.locking.support.helpers import take_from

pytestmark = pytest.mark.usefixtures("memory_locks")
PATIENCE = 30.0


def single(lease):
    """The only lease of one name."""
    (found,) = lease.leases
    return found


def test_the_deadline_is_counted_from_before_the_request():
    """The local end of the lease lies before the engine's: the journey of the request is on the safe side."""
    lease = single(get_lock("a", ttl=30).acquire())
    hold = STORES["default"]._holds["a"][0]
    assert lease.deadline == lease.taken_at + 30
    assert lease.deadline <= hold.deadline
    lease.release()


def test_a_passed_deadline_is_a_loss():
    """Without any notice: at its local deadline the lease is lost, and nothing brings it back."""
    lease = single(get_lock("a", ttl=30).acquire())
    lease.deadline = lease.taken_at
    assert lease.state is State.LOST
    assert lease.remaining() == 0.0
    lease.deadline += 60
    assert lease.state is State.LOST


def test_a_hold_that_is_anothers_by_now_is_lost_at_its_release():
    """The engine compares the owner, and says that it released nothing: the caller gets an error."""
    lease = get_lock("a", ttl=60).acquire()
    assert take_from("a", owner=lease.owner)
    with pytest.raises(LockLost):
        lease.release()


def test_an_unknown_lease_is_confirmed():
    """An unanswered renewal makes a lease unknown, which still holds; a later answer makes it held again."""
    lease = single(get_lock("a", ttl=30).acquire())
    seen = []
    for step in (
        lease.mark_unknown,
        lambda: lease.prolong(now(), 30),
        lease.lose,
        lease.mark_unknown,
        lambda: lease.prolong(now(), 30),
    ):
        step()
        seen.append(lease.state.value)
    assert seen == ["unknown", "held", "lost", "lost", "lost"]


def test_an_unknown_lease_ends_at_its_deadline():
    """Unknown isn't held forever."""
    lease = single(get_lock("a", ttl=30).acquire())
    lease.mark_unknown()
    lease.deadline = lease.taken_at
    with pytest.raises(LockLost, match=r"'a' on backend 'default': ttl=30 isn't renewed"):
        lease.ensure_held()


def test_on_lost_is_called_once_with_the_lease():
    """However often the loss is noticed the hook runs once, in a thread of its own."""
    reported: list[tuple[Lease, str]] = []
    lease = get_lock(
        "a", ttl=30, on_lost=lambda it: reported.append((it, threading.current_thread().name))
    ).acquire()
    for _ in range(3):
        simulate_loss(lease)
        single(lease).lose()
    until(lambda: reported, PATIENCE)
    assert reported == [(lease, "locking-call-on-lost")]


def test_a_hook_that_raises_hurts_no_other(caplog):
    """An error in `on_lost` is logged, and no more."""
    done = threading.Event()

    def hook(lease):
        done.set()
        raise ZeroDivisionError

    lease = get_lock("a", ttl=30, on_lost=hook).acquire()
    simulate_loss(lease)
    assert done.wait(PATIENCE)
    until(lambda: "on_lost of the lock 'a' raised" in caplog.text, PATIENCE)


def test_a_forked_child_tells_no_loss_of_its_parents_lease():
    """The hold is the parent's, and so is its end: the child calls no `on_lost`, whatever it looks at."""
    reported: list[Lease] = []

    def work(pipe):
        lease.leases[0].deadline = lease.leases[0].taken_at
        pipe.send((lease.state.value, lease.remaining(), reported))

    with get_lock("a", ttl=60, on_lost=reported.append) as lease, child(work) as forked:
        assert forked.report() == ("held", 0.0, [])


def test_a_fork_while_a_loss_is_reported_does_not_block_the_child():
    """A lock that another thread holds at the moment of the fork would never be let go in the child."""

    def work(pipe):
        with pytest.raises(LockLost), get_lock("a", ttl=60) as lease:
            simulate_loss(lease)
        pipe.send("lost, and raised")

    with _changing, child(work) as forked:
        assert forked.report(PATIENCE) == "lost, and raised"


def test_a_released_lease_is_not_lost(caplog):
    """After a release the deadline means nothing any more."""
    lease = single(get_lock("a", ttl=30).acquire())
    lease.release()
    lease.deadline = lease.taken_at
    assert lease.state is State.RELEASED
    with pytest.raises(LockNotOwned, match="released already"):
        lease.ensure_held()
    with pytest.raises(LockNotOwned):
        lease.extend(5)


def test_a_lost_hold_is_not_re_entered():
    """A block inside a block whose lock was lost isn't entered as if it were still held."""
    with pytest.raises(LockLost), get_lock("a", ttl=30) as lease:
        simulate_loss(lease)
        with pytest.raises(LockLost), get_lock("a", ttl=30):
            pytest.fail("the body ran without the lock")


def test_mutant_a_hold_entered_again_unasked_runs_without_its_lock(monkeypatch):
    """The rule of the test above taken out: the inner block runs, though another may have the lock."""
    runs = []
    with pytest.raises(LockLost), get_lock("a", ttl=30) as lease:
        simulate_loss(lease)
        with monkeypatch.context() as patch, suppress(LockLost):
            patch.setattr(SingleLease, "ensure_held", lambda lease: None)
            with get_lock("a", ttl=30):
                runs.append("without the lock")
    assert runs


def test_a_forgotten_lease_is_not_kept_alive():
    """A lease without references leaves the table by which the watchdog renews."""
    get_lock("a", ttl=None).acquire()
    gc.collect()
    assert held_locks() == []
    assert STORES["default"]._holds["a"][0].deadline <= now() + 30


def test_holds_are_distinguished_by_thread_objects_not_idents():
    """A thread whose ident is that of a dead holder isn't taken for it."""
    leases = [elsewhere(get_lock("a", ttl=60).acquire)]
    for _ in range(20):  # one of these threads gets the dead one's ident
        assert elsewhere(get_lock("a").try_acquire) is None
    leases[0].release()


@pytest.fixture
def of_a_dead_thread(memory_locks):
    """The lease of a thread that has ended, whose place in memory this thread has got."""
    lease = elsewhere(get_lock("a", ttl=60).acquire).leases[0]
    mine = (lease.backend.alias, lease.key, id(current_context()))
    HOLDS[mine] = weakref.ref(lease)
    yield lease
    HOLDS.pop(mine, None)
    lease.release()


@pytest.mark.usefixtures("of_a_dead_thread")
def test_a_dead_threads_place_in_memory_is_not_its_lock():
    """Objects get the addresses of those that are gone, so a lease is asked whose it is."""
    assert get_lock("a").try_acquire() is None


def test_mutant_a_hold_identified_by_its_address_is_another_threads(of_a_dead_thread, monkeypatch):
    """The rule of the test above taken out: this thread enters a lock that it never acquired."""
    by_address = lambda context, alias, key: HOLDS.get((alias, key, id(context)), lambda: None)()  # noqa: E731
    monkeypatch.setattr("locking.core.lock.held_by", by_address)
    again = get_lock("a").try_acquire()
    assert again is of_a_dead_thread
    single(again).depth -= 1


def test_leases_of_several_names_show_the_worst():
    """The state of several leases is that of the worst; what is left is that of the shortest."""
    lease = get_lock("b", "a", ttl=30).acquire()
    seen = [lease.state.value]
    assert lease.names == ("a", "b")
    lease.leases[0].deadline -= 20
    assert lease.remaining() <= 10
    lease.leases[1].mark_unknown()
    seen.append(lease.state.value)
    lease.extend(40)
    assert lease.remaining() > 39
    lease.leases[1].lose()
    seen.append(lease.state.value)
    assert seen == ["held", "unknown", "lost"]
    with pytest.raises(LockLost, match="'b'"):
        lease.release()
    assert held_locks() == []


def test_keeping_several_names_keeps_all():
    """`keep` leaves each name to its ttl."""
    lease = get_lock("a", "b", ttl=30).acquire()
    lease.leave_to_expire()
    assert held_locks() == []
    assert get_lock("a").locked()
    assert get_lock("b").locked()


def test_keeping_an_inner_hold_keeps_the_outer():
    """`keep` on a re-entered lock gives up one level, not the lock."""
    with get_lock("a", ttl=30):
        get_lock("a", ttl=30).acquire().leave_to_expire()
        assert held_locks() == ["a"]


def test_a_lease_is_true_and_says_what_it_is():
    """`if lock.try_acquire():` reads as it should, and a log line is of use."""
    lease = get_lock("a", ttl=30).try_acquire()
    assert lease
    assert "Lease of 'a' on 'default': held, " in repr(lease)
    assert single(lease).owner not in repr(lease)
    lease.release()
    several = get_lock("a", "b", ttl=30).acquire()
    assert "Lease of a, b: held" in repr(several)
    several.release()


def test_the_table_of_holds_is_empty_in_the_end():
    """Releases and losses leave nothing behind."""
    for _ in range(3):
        with get_lock("a", "b", ttl=30):
            pass
    lease = get_lock("a", ttl=30).acquire()
    simulate_loss(lease)
    with pytest.raises(LockLost):
        lease.release()
    assert len(HOLDS) == 0


def test_losses_are_logged(caplog):
    """Operators read of a loss even if the program doesn't look."""
    with caplog.at_level(logging.WARNING, logger="locking"):
        lease = get_lock("a", ttl=30).acquire()
        simulate_loss(lease)
    assert "lost the lock 'a' (ttl 30 s) on backend 'default'" in caplog.text


def test_a_thread_that_ends_without_releasing_is_not_renewed_for_ever():
    """The lock object lives on, but the lease goes with its thread, so the watchdog has nothing to renew."""
    lock = get_lock("left-behind")

    def acquire_and_end():
        lock.acquire()

    thread = threading.Thread(target=acquire_and_end)
    thread.start()
    thread.join()
    assert [lease.name for lease in live_leases()] == ["left-behind"]
    del thread
    gc.collect()
    assert live_leases() == []


# extensions that overlap


def short_and_watched(ttl):
    """A lease of `ttl` seconds as the watchdog has it, and what the engine has of it."""
    lease = single(get_lock("a", ttl=ttl).acquire())
    lease.renewed = True
    return lease, STORES["default"]._holds["a"][0]


def extended_before_the_renewal(lease, monkeypatch):
    """The user's extension is sent during the renewal, and the engine serves it first."""
    extend_many = locks["default"].extend_many

    def late(leases):
        lease.extend(20)
        return extend_many(leases)

    monkeypatch.setattr(locks["default"], "extend_many", late)
    renew([lease])


def renewed_before_the_extension(lease, monkeypatch):
    """The renewal is sent during the user's extension, and the engine serves the renewal last."""
    extend = locks["default"].extend

    def overtaken(*asked):
        held = extend(*asked)
        monkeypatch.setattr(locks["default"], "extend", extend)
        renew([lease])
        return held

    monkeypatch.setattr(locks["default"], "extend", overtaken)
    lease.extend(20)


OVERLAPS = [extended_before_the_renewal, renewed_before_the_extension]


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_an_extension_during_a_renewal_leaves_no_longer_deadline_than_the_engines(overlap, monkeypatch):
    """Whichever of the two requests is served last, the local deadline lies before the engine's."""
    lease, hold = short_and_watched(3)
    overlap(lease, monkeypatch)
    assert lease.deadline <= hold.deadline
    assert lease.remaining() > 0
    assert lease.renew_at <= lease.deadline


def test_the_next_renewal_gives_the_length_that_was_asked_for(monkeypatch):
    """After an overlap the lease is as long as wanted, and the renewal that follows keeps it so."""
    lease, hold = short_and_watched(3)
    renewed_before_the_extension(lease, monkeypatch)
    renew([lease])
    assert lease.ttl == 20
    assert 19 < lease.remaining() <= 20
    assert lease.deadline <= hold.deadline


def test_nothing_shortens_a_lease(monkeypatch):
    """Neither its user's shorter extension, nor one that is served late; the longest one counts."""
    lease, hold = short_and_watched(30)
    lease.extend(2)
    locks["default"].extend("a", lease.owner, 2)
    assert lease.remaining() > 29
    assert lease.deadline <= hold.deadline
    assert lease.ttl == 30


def unanswered(*args):
    """A request whose answer is lost."""
    raise BackendUnavailable("no answer")


# a release that is tried again


def released_again(monkeypatch):
    """Release a lease again, whose first release got no answer, after its thread took the lock again."""
    backend = locks["default"]
    release = backend.release
    first = get_lock("a").acquire()

    def unheard(*asked):
        release(*asked)
        raise BackendUnavailable("the answer was lost")

    monkeypatch.setattr(backend, "release", unheard)
    with pytest.raises(BackendUnavailable):
        first.release()
    newer = get_lock("a").acquire()
    monkeypatch.setattr(backend, "release", release)
    with pytest.raises(LockLost):
        first.release()
    return newer


def test_a_release_tried_again_leaves_the_newer_lease_registered(monkeypatch):
    """The thread's newer lease of the same name is still known, so that it is renewed and re-entered."""
    newer = released_again(monkeypatch)
    assert_locked("a")
    assert newer.leases[0] in live_leases()
    newer.release()


def test_a_kept_lease_leaves_the_newer_one_registered(monkeypatch):
    """The same when the old lease is left to its ttl instead of being released again."""
    monkeypatch.setattr(locks["default"], "release", unanswered)
    first = single(get_lock("a", ttl=60).acquire())
    with pytest.raises(BackendUnavailable):
        first.release()
    STORES.clear()
    monkeypatch.undo()
    newer = get_lock("a", ttl=60).acquire()
    first.leave_to_expire()
    assert_locked("a")
    newer.leave_to_expire()


def test_a_release_that_unregisters_by_name_is_caught(monkeypatch):
    """The mutant of the tests above: the newer lease is forgotten, and never renewed."""
    monkeypatch.setattr("locking.core.lease.unregister", lambda lease: HOLDS.pop(lease._hold_key, None))
    released_again(monkeypatch)
    with pytest.raises(LockNotOwned):
        assert_locked("a")


def test_a_lease_is_unregistered_once():
    """Taking it out a second time does nothing."""
    lease = single(get_lock("a", ttl=60).acquire())
    unregister(lease)
    unregister(lease)
    lease.leave_to_expire()
