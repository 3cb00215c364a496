"""The watchdog: one thread an alias that renews, doubts, finds losses."""

import threading
from collections import Counter

import pytest

from locking import BackendError, BackendUnavailable, Lease, LockLost, get_lock, get_semaphore
from locking.backends.base import ask_each
from locking.core import renewal
from locking.core.handler import locks
from locking.core.lease import State
from locking.core.renewal import renew, renew_due
from locking.testing.contract.base import at_leisure, until
from locking.testing.contract.processes import child
from locking.utils.clock import now
from locking.utils.ownership import new_owner
from tests.backends import MEMORY

PATIENCE = 30.0
LEASE = 60.0


@pytest.fixture
def quick(monkeypatch, memory_locks):
    """Leases in memory that the watchdog renews every 20 ms, and that outlast any stall of the machine."""
    monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", LEASE)
    monkeypatch.setattr("locking.core.lease.RENEW_AFTER", 0.02 / LEASE)
    monkeypatch.setattr("locking.core.renewal.RETRY_PAUSE", 0.02)


def single(lease):
    """The only lease of one name."""
    (found,) = lease.leases
    return found


def watchdogs(alias="default"):
    """The threads in this process that renew the leases of an alias."""
    return [thread for thread in threading.enumerate() if thread.name == f"locking-renew-{alias}"]


def test_a_short_lease_lives_for_several_times_its_length(own_redis, locks_on, monkeypatch):
    """On a real server a short lease is renewed over and over, and free as soon as it is released."""
    locks_on(own_redis.url)

    def outlive(length):
        monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", length)
        with get_lock("a") as lease:
            until(lambda: now() > single(lease).taken_at + 2 * length, PATIENCE * 2)
            left = own_redis.client.pttl("a")
            lease.ensure_held()  # behind it: a lease that was lost meanwhile is another try's
            assert 0 < left <= length * 1000
        assert not own_redis.client.exists("a")

    at_leisure(outlive, 0.05)


@pytest.mark.usefixtures("memory_locks")
def test_a_lease_of_ten_seconds_is_renewed_every_three():
    """Two more attempts fit into the lease if one fails."""
    with get_lock("a") as lease:
        assert lease.ttl == 10
        assert single(lease).renew_at == pytest.approx(single(lease).taken_at + 3)


@pytest.mark.usefixtures("quick")
def test_one_thread_renews_all(monkeypatch):
    """A hundred leases of an alias need one watchdog, which renews those of a backend in one call."""
    batches: list[int] = []
    extend_many = locks["default"].extend_many

    def counted(leases):
        batches.append(len(leases))
        return extend_many(leases)

    monkeypatch.setattr(locks["default"], "extend_many", counted)
    leases = [get_lock(f"a:{number}").acquire() for number in range(100)]
    until(lambda: min(single(lease).renewals for lease in leases) >= 3, PATIENCE)
    assert len(watchdogs()) == 1
    assert len(batches) < sum(batches)
    for lease in leases:
        lease.release()


def test_many_leases_are_renewed_in_several_batches(own_redis, locks_on):
    """More leases than one script should handle are extended, each answered in its place."""
    locks_on(own_redis.url)
    backend, owner = locks["default"], new_owner()
    for number in range(250):
        if number % 3:
            backend.try_acquire(f"n:{number}", owner, 60.0)
    answers = backend.extend_many([(f"n:{number}", owner, 90.0) for number in range(250)])
    assert answers == [bool(number % 3) for number in range(250)]
    assert own_redis.client.pttl("n:1") > 60_000


@pytest.mark.usefixtures("quick")
def test_a_short_outage_is_survived(monkeypatch):
    """Failed renewals make the lease unknown; the first that works makes it held again."""
    backend, outage = locks["default"], threading.Event()
    extend_many = backend.extend_many

    def failing(leases):
        if outage.is_set():
            raise BackendUnavailable("no answer")
        return extend_many(leases)

    monkeypatch.setattr(backend, "extend_many", failing)
    with get_lock("a") as lease:
        outage.set()
        until(lambda: lease.state is State.UNKNOWN, PATIENCE)
        lease.ensure_held()
        outage.clear()
        until(lambda: lease.state is State.HELD, PATIENCE)


@pytest.mark.usefixtures("quick")
def test_a_long_outage_is_a_loss(monkeypatch):
    """Without an answer until the local deadline the lease is lost, and reported unasked."""
    reported = threading.Event()
    monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", 0.05)
    monkeypatch.setattr(locks["default"], "extend_many", _fail)
    lease = get_lock("a", on_lost=lambda _: reported.set()).acquire()
    assert reported.wait(PATIENCE)
    with pytest.raises(LockLost):
        lease.release()


def _fail(*args):
    raise BackendUnavailable("no answer")


@pytest.mark.usefixtures("quick")
def test_an_alias_that_hangs_costs_no_other_its_leases(settings, monkeypatch):
    """While a renewal on one alias waits for its answer, leases on another are renewed again and again."""
    settings.LOCKING = {alias: {"BACKEND": MEMORY} for alias in ("default", "hung")}
    hangs, let_go = threading.Event(), threading.Event()

    def hang(leases):
        hangs.set()
        assert let_go.wait(PATIENCE)
        return [True] * len(leases)

    monkeypatch.setattr(locks["hung"], "extend_many", hang)
    stuck = get_lock("a", backend="hung").acquire()
    assert hangs.wait(PATIENCE)
    try:
        with get_lock("a") as lease:
            until(lambda: single(lease).renewals >= 3, PATIENCE)
            assert len(watchdogs()) == len(watchdogs("hung")) == 1
    finally:
        let_go.set()
    until(lambda: single(stuck).renewals, PATIENCE)


@pytest.mark.usefixtures("memory_locks")
def test_a_late_renewal_does_not_revive():
    """A watchdog that comes after the deadline finds the lease lost, even if the engine would extend it."""
    lease = single(get_lock("a").acquire())
    lease.deadline = now()
    renew([lease])
    assert lease.state is State.LOST
    assert not lease.renewed


@pytest.mark.usefixtures("memory_locks")
def test_a_renewal_that_ignores_the_deadline_is_caught(monkeypatch):
    """The mutant of the test above: it is held again, though another may have had the lock since."""
    monkeypatch.setattr(
        "locking.core.renewal.note_answer", lambda lease, held, since, ttl: lease.prolong(since, ttl)
    )
    lease = single(get_lock("a").acquire())
    lease.deadline = now()
    renew([lease])
    assert lease.state is State.HELD
    lease.release()


@pytest.mark.usefixtures("memory_locks")
def test_a_lease_released_during_its_renewal_is_not_lost(monkeypatch):
    """A renewal that overlaps with the release finds nothing, and says nothing."""
    reported: list[Lease] = []
    lease = single(get_lock("a", on_lost=reported.append).acquire())
    extend_many = locks["default"].extend_many

    def released_meanwhile(leases):
        lease.release()
        return extend_many(leases)

    monkeypatch.setattr(locks["default"], "extend_many", released_meanwhile)
    renew([lease])
    assert lease.state is State.RELEASED
    assert reported == []


@pytest.mark.usefixtures("memory_locks")
def test_a_released_lease_is_not_renewed(monkeypatch, turned_clock):
    """No renewal follows a release: the next holder's lock isn't touched by the last one's watchdog."""
    renewed: list[str] = []
    extend_many = locks["default"].extend_many

    def noted(leases):
        renewed.extend(key for key, _, _ in leases)
        return extend_many(leases)

    monkeypatch.setattr(locks["default"], "extend_many", noted)
    with get_lock("a") as gone:
        pass
    with get_lock("b") as lease:
        turned_clock.advance(lease.ttl / 2)  # both would be due now, and neither was before
        renew_due("default")
        until(lambda: single(lease).renewals, PATIENCE)
    assert set(renewed) == {"b"}
    assert gone.state is State.RELEASED


@pytest.mark.usefixtures("quick")
def test_the_watchdog_outlives_surprises(monkeypatch, caplog):
    """An unexpected error is logged, and the leases are renewed all the same."""
    backend, surprises = locks["default"], [ZeroDivisionError("a surprise")]
    extend_many = backend.extend_many

    def surprising(leases):
        if surprises:
            raise surprises.pop()
        return extend_many(leases)

    monkeypatch.setattr(backend, "extend_many", surprising)
    with get_lock("a") as lease:
        until(lambda: single(lease).renewals >= 2, PATIENCE)
        lease.ensure_held()
    assert "a surprise" in caplog.text


# one lease's trouble


@pytest.fixture
def one_fails(memory_locks, monkeypatch):
    """Two hundred leases, one of which the backend refuses to extend."""
    backend = locks["default"]
    extend = backend.extend
    monkeypatch.setattr(backend, "extend", lambda key, *of: _refuse() if key == "a7" else extend(key, *of))
    leases = [single(get_lock(f"a{number}", ttl=60).acquire()) for number in range(200)]
    for lease in leases:
        lease.renewed = True
    yield leases
    for lease in leases:
        lease.leave_to_expire()


def _refuse():
    raise BackendError("WRONGTYPE")


def states(leases):
    """How many leases are in which state, and the numbers of those renewed."""
    return Counter(lease.state for lease in leases), sum(lease.renewals for lease in leases)


def test_one_lease_that_fails_costs_no_other_its_renewal(one_fails):
    """Of two hundred leases the one that the backend refuses is unknown, and all others are renewed."""
    renew(one_fails)
    assert states(one_fails) == ({State.HELD: 199, State.UNKNOWN: 1}, 199)


def all_or_nothing(answers):
    """Take the rule out: one unknown answer makes all leases unknown."""
    return [None] * len(answers)


def unknown_is_lost(answers):
    """Take the rule out: an unknown answer is a refusal."""
    return [bool(answer) for answer in answers]


def unknown_is_held(answers):
    """Take the rule out: an unknown answer is an extension."""
    return [answer is not False for answer in answers]


@pytest.mark.parametrize("mutant", [all_or_nothing, unknown_is_lost, unknown_is_held])
def test_an_unknown_answer_taken_for_another_is_caught(mutant, one_fails, monkeypatch):
    """The mutants of the test above lose the difference between yes, no and unknown."""
    answers = renewal._answers
    monkeypatch.setattr(renewal, "_answers", lambda *asked: mutant(answers(*asked)))
    renew(one_fails)
    assert states(one_fails) != ({State.HELD: 199, State.UNKNOWN: 1}, 199)


@pytest.mark.usefixtures("memory_locks")
def test_a_backend_that_fails_in_an_unforeseen_way_costs_no_other_its_leases(monkeypatch, caplog):
    """A defect in the backend of one kind of lock leaves the leases of another kind on the alias renewed."""
    lease, permit = (single(lock.acquire()) for lock in (get_lock("a"), get_semaphore("b", 2)))
    monkeypatch.setattr(permit.backend, "extend_many", lambda leases: 1 / 0)
    for each in (permit, lease):
        each.renew_at = now()
    renew_due("default")
    assert (lease.renewals, permit.renewals, permit.state) == (1, 0, State.UNKNOWN)
    assert "division by zero" in caplog.text


def test_answers_are_given_one_by_one():
    """Yes, no and unknown stand in the places of their questions."""
    assert ask_each([lambda: True, _refuse, lambda: False, _fail], seconds=60) == [True, None, False, None]


def test_no_answer_at_all_is_an_outage():
    """Only when nothing was answered does the whole request fail."""
    with pytest.raises(BackendUnavailable):
        ask_each([_fail, _fail], seconds=60)


def test_timeouts_are_not_waited_for_one_by_one():
    """When the time is up after a failure, the rest stays unknown instead of waiting for more timeouts."""
    asked: list[int] = []

    def ask():
        asked.append(1)
        return True

    questions = [lambda: True, _fail, ask]
    assert ask_each(questions, seconds=0) == [True, None, None]
    assert asked == []


@pytest.mark.usefixtures("quick")
def test_a_forked_child_has_a_watchdog_of_its_own():
    """A child renews its own leases, and none of its parent's."""

    def work(pipe):
        pipe.send(len(watchdogs()))
        with get_lock("b") as lease:
            until(lambda: single(lease).renewals >= 2, PATIENCE)
            pipe.send((len(watchdogs()), lease.state.value))

    with get_lock("a") as lease:
        with child(work) as forked:
            assert forked.report() == 0
            assert forked.report() == (1, "held")
        lease.ensure_held()


@pytest.mark.usefixtures("memory_locks")
def test_leases_with_a_ttl_need_no_watchdog():
    """Nothing is started for locks that end by themselves."""

    def work(pipe):
        with get_lock("a", ttl=60):
            pipe.send(len(watchdogs()))
        with get_lock("a"):
            pipe.send(len(watchdogs()))

    with child(work) as forked:
        assert [forked.report(), forked.report()] == [0, 1]
