"""How a leader sizes its batch; each rule with a mutant, the rule taken out, that its check refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest import mock

import pytest

from inventory import group_commit as module
from inventory.domain import Busy
from inventory.group_commit import LONGEST_WAIT, GroupCommit, Ticket
from inventory.strategies import Sale
from tests.inventory.interleaving import Killed, eventually

LONG = 1000.0
NOW = 0.0


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch):
    monkeypatch.setattr(module, "monotonic", lambda: NOW)


class Arrivals(threading.Condition):
    """A condition that notes how long each waiter would wait, and can be told to wait in truth."""

    def __init__(self, mutex: threading.Lock) -> None:
        super().__init__(mutex)
        self.timeouts: list[float] = []
        self.truly = False
        self.stops = False

    def wait_for(self, predicate, timeout=None):
        """Note the time that would be waited; wait only if told to."""
        if predicate():
            return True
        self.timeouts.append(timeout)
        if self.stops:
            self.stops = False
            raise Killed("a signal")
        return super().wait_for(predicate, timeout) if self.truly else False


class Counter:
    """A group commit whose work is to note the size of each batch.

    Args:
        kind: GroupCommit, or a mutant of it.
        expected: buyers that were here a moment ago. ended: seconds since their batch. takes: a commit.
    """

    def __init__(
        self,
        kind: type[GroupCommit],
        expected: int = 0,
        ended: float = 0.0,
        takes: float = 0.0,
        most: int = 64,
    ) -> None:
        self.sizes: list[int] = []
        self.commit = kind(lambda batch: self.sizes.append(len(batch)), most)
        self.arrivals = self.commit._arrived = Arrivals(self.commit._mutex)
        self.commit._expected, self.commit._ended = expected, NOW - ended
        self.commit._commit_seconds = takes
        self.threads: list[threading.Thread] = []

    def submit(self, wait: float = 0.05) -> None:
        """Have a sale done by this thread, which waits so long until somebody begins with it."""
        self.commit.submit(Sale((), print), wait)

    def start(self) -> None:
        """Have a sale done by another thread; return when it waits or is done."""
        done, waits = len(self.sizes), len(self.arrivals.timeouts)
        thread = threading.Thread(target=self.submit)
        self.threads.append(thread)
        thread.start()
        eventually(
            lambda: len(self.sizes) > done or len(self.arrivals.timeouts) > waits, "it waits or is done"
        )

    def join(self) -> None:
        """Wait for the others."""
        for thread in self.threads:
            thread.join(30)


def waits_for_who_was_here(kind: type[GroupCommit]) -> None:
    """Two were here: the first who is back waits for the second, and they share a commit."""
    counter = Counter(kind, expected=2, takes=LONG)
    counter.arrivals.truly = True
    with mock.patch.object(module, "LONGEST_WAIT", 30.0):
        counter.start()
        counter.submit(30.0)  # the leader that it wakes may stand still for a while
        counter.join()
    assert counter.sizes == [2]


def alone_waits_for_nobody(kind: type[GroupCommit]) -> None:
    """One was here and is back: it begins at once, again and again."""
    counter = Counter(kind, expected=1, takes=LONG)
    counter.submit()
    counter.submit()
    assert counter.sizes == [1, 1]
    assert not counter.arrivals.timeouts


def waits_no_longer_than_a_commit(kind: type[GroupCommit]) -> None:
    """Two were here, one is back: it waits for the rest of a commit's time, counted from their batch."""
    counter = Counter(kind, expected=2, takes=0.04)
    counter.submit()
    assert 0 < counter.arrivals.timeouts[0] <= 0.04
    assert counter.sizes == [1]


def is_not_misled_by_a_slow_commit(kind: type[GroupCommit]) -> None:
    """Commits have taken very long: nobody waits as long for others."""
    counter = Counter(kind, expected=2, takes=LONG)
    counter.submit()
    assert counter.arrivals.timeouts[0] <= LONGEST_WAIT


def does_not_wait_for_who_is_gone(kind: type[GroupCommit]) -> None:
    """Many were here, but longer ago than a commit takes: the next buyer begins at once."""
    counter = Counter(kind, expected=9, ended=1.0, takes=0.04)
    counter.submit()
    assert not any(counter.arrivals.timeouts)


def begins_with_a_full_batch(kind: type[GroupCommit]) -> None:
    """More were here than a batch may have: it begins when it is full."""
    counter = Counter(kind, expected=9, takes=LONG, most=2)
    counter.commit._queue.append(Ticket(Sale((), print)))
    counter.submit()
    assert counter.sizes == [2]
    assert not counter.arrivals.timeouts


def expects_batch_and_queue(kind: type[GroupCommit]) -> None:
    """After a batch of two with one more in the queue, three are expected."""
    counter = Counter(kind)
    counter.commit._queue.append(Ticket(Sale((), print)))
    counter.commit._learn(2, 0.0)
    assert counter.commit._expected == 3


def leaves_the_lead_when_stopped(kind: type[GroupCommit]) -> None:
    """A leader that is stopped while it waits sells nothing, and the next buyer leads."""
    counter = Counter(kind, expected=2, takes=LONG)
    counter.arrivals.stops = True
    with pytest.raises(Killed):
        counter.submit()
    try:
        counter.submit()
    except Busy:
        pytest.fail("nobody leads")
    assert counter.sizes == [1]


class LeadsAtOnce(GroupCommit):
    """Waits for nobody."""

    def _is_complete(self):
        return True


class ExpectsCompany(GroupCommit):
    """A lonely buyer waits, too."""

    def _is_complete(self):
        return len(self._queue) >= max(2, self._expected)


class CountsFromItsOwnStart(GroupCommit):
    """Waits for as long as a commit takes, however long ago the others were here."""

    def _gather(self, batch):
        self._ended = NOW
        super()._gather(batch)


class WaitsUntilAllAreHere(GroupCommit):
    """Knows no time."""

    def _gather(self, batch):
        self._ended, self._commit_seconds = LONG + NOW, LONG
        super()._gather(batch)


class BelievesAnyCommit(GroupCommit):
    """Has no bound of its own."""

    def _gather(self, batch):
        self._ended += max(0.0, self._commit_seconds - LONGEST_WAIT)
        super()._gather(batch)


class KnowsNoBound(GroupCommit):
    """Waits for more than a batch may have."""

    def _is_complete(self):
        return len(self._queue) >= self._expected


class ForgetsTheQueue(GroupCommit):
    """Expects those of the last batch only."""

    def _learn(self, size, seconds):
        super()._learn(size - len(self._queue), seconds)


class KeepsTheLead(GroupCommit):
    """A leader that is stopped stays in the queue, at its head."""

    def _withdrawn(self, ticket):
        self._hand_off = lambda: None  # type: ignore[method-assign]
        return ticket


RULES: list[tuple[Callable[[type[GroupCommit]], None], type[GroupCommit]]] = [
    (waits_for_who_was_here, LeadsAtOnce),
    (alone_waits_for_nobody, ExpectsCompany),
    (does_not_wait_for_who_is_gone, CountsFromItsOwnStart),
    (waits_no_longer_than_a_commit, WaitsUntilAllAreHere),
    (is_not_misled_by_a_slow_commit, BelievesAnyCommit),
    (begins_with_a_full_batch, KnowsNoBound),
    (expects_batch_and_queue, ForgetsTheQueue),
    (leaves_the_lead_when_stopped, KeepsTheLead),
]


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES], ids=lambda rule: rule.__name__)
def test_a_batch_sizes_itself(rule):
    """Each rule holds, in an order of events that the test decides."""
    rule(GroupCommit)


@pytest.mark.parametrize(("rule", "mutant"), RULES, ids=lambda given: given.__name__)
def test_a_mutant_is_refused(rule, mutant, monkeypatch):
    """With the rule taken out its check fails."""
    monkeypatch.setattr("tests.inventory.interleaving.PATIENCE", 1.0)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        rule(mutant)


@pytest.mark.parametrize("step", ["_is_complete", "_lead"])
def test_a_leader_that_is_stopped_before_it_works_leaves_no_lead_behind(step, monkeypatch):
    """A signal comes as soon as it stands in the queue, or has the lead: the next buyer leads."""
    counter = Counter(GroupCommit)

    def stopped(*_: object) -> None:
        raise Killed("a signal")

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(counter.commit, step, stopped)
        counter.submit()
    counter.submit()
    assert counter.sizes == [1]


def test_the_time_of_a_commit_is_averaged():
    """One slow commit among eight counts for an eighth."""
    commit = GroupCommit(lambda batch: None)
    commit._learn(1, 0.8)
    assert commit._commit_seconds == pytest.approx(0.8 / module.SMOOTHING)


def test_the_group_commit_of_a_crowd_shares_commits():
    """Sixteen buyers that come again and again, each as soon as it is served, share their commits."""
    inside = threading.Barrier(16)
    counter = Counter(GroupCommit)
    counter.arrivals.truly = True
    counter.commit._commit_seconds = 0.001

    def buy() -> None:
        inside.wait(30)
        for _ in range(20):
            counter.commit.submit(Sale((), print), 30)

    threads = [threading.Thread(target=buy) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(counter.sizes) == 16 * 20
