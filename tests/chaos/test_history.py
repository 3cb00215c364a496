"""Many processes, stopped and killed, write down when they held one lock; their histories are checked."""

import itertools
import os
import random
import signal
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locking import BackendUnavailable, LockLost, LockNotAcquired, get_lock
from locking.backends.redis import scripts
from locking.testing.contract.processes import Child, child
from locking.utils.clock import now
from tests.chaos.history import Hold, Journal, read_holds, violations

TTL = 0.25
PROCESSES = 4
PATIENCE = 60.0
"""Seconds more that a busy machine may take for the rounds."""


# the check itself


HISTORY = [
    Hold(1, "a:1", 10, invoked=0.0, acquired=0.1, deadline=1.0, leaving=0.5, clean=True),
    Hold(2, "b:1", 11, invoked=0.2, acquired=0.6, deadline=1.5, leaving=0.7, clean=True),
    Hold(1, "a:2", 12, invoked=0.6, acquired=0.8, deadline=1.0),  # killed
    Hold(2, "b:2", 13, invoked=0.9, acquired=1.1, deadline=2.0, leaving=3.0),  # slept past its lease
    Hold(3, "c:1", 14, invoked=1.0, acquired=2.1, deadline=3.1, leaving=2.2, clean=True),
]

MUTANTS = {
    "never released, granted to another": (1, {"acquired": 0.4}),
    "granted before a killed holder's lease was over": (3, {"acquired": 0.95}),
    "the same token twice": (2, {"token": 11}),
    "a falling token": (4, {"token": 9}),
    "a falling token of one who claims nothing": (4, {"token": 9, "deadline": 2.05}),
}


def test_a_possible_history_is_accepted():
    """Releases, a kill, and a holder who slept past its lease contradict nothing."""
    assert violations(HISTORY) == []


@pytest.mark.parametrize(("index", "change"), list(MUTANTS.values()), ids=list(MUTANTS))
def test_a_mutant_history_is_rejected(index, change):
    """Each rule of the check finds what breaks it."""
    mutant = list(HISTORY)
    mutant[index] = replace(mutant[index], **change)
    assert violations(mutant)


def test_a_slow_holder_may_overlap_with_its_successor_in_time_but_not_in_claim():
    """A release that is recorded late is no violation: the claim ended when the holder began to release."""
    slow = Hold(1, "a:1", 1, invoked=0.0, acquired=0.1, deadline=0.2, leaving=5.0)
    assert violations([slow, Hold(2, "b:1", 2, invoked=0.1, acquired=0.25, deadline=1.0)]) == []


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 1), st.integers(1, 3)), max_size=12))
def test_histories_one_after_the_other_are_accepted_and_their_overlaps_rejected(steps):
    """Any sequence of holds passes; moving any hold into its predecessor's claim doesn't."""
    moment, holds = 0.0, []
    for token, (gap, length, process) in enumerate(steps, 1):
        start = moment + gap
        moment = start + length
        holds.append(Hold(process, f"{process}:{token}", token, start, start, start + 5, leaving=moment))
    assert violations(holds) == []
    for index in range(1, len(holds)):
        before, here = holds[index - 1], holds[index]
        middle = (before.acquired + before.end) / 2
        assert violations([*holds[: index - 1], before, replace(here, acquired=middle), *holds[index + 1 :]])


# real processes


def work(pipe, folder: Path, number: int) -> None:
    """Take the lock again and again and write down what it looked like from here."""
    journal = Journal(folder / f"{os.getpid()}.jsonl", os.getpid())
    chance = random.Random(number)
    pipe.send("ready")
    while not pipe.poll():
        invoked = now()
        try:
            lease = get_lock("history", ttl=TTL, wait=1, fenced=True).acquire()
        except (LockNotAcquired, BackendUnavailable):
            continue
        owner = lease.owner
        (single,) = lease.leases
        journal.note(
            owner=owner, token=single.token, invoked=invoked, acquired=now(), deadline=single.deadline
        )
        time.sleep(chance.uniform(0, 0.01))  # the work done under the lock
        journal.note(owner=owner, leaving=now(), clean=False)
        try:
            lease.release()
        except (LockLost, BackendUnavailable):
            continue
        journal.note(owner=owner, clean=True)
    pipe.send("done")


def run_workers(folder: Path, seconds: float, torment, rounds: int = 0, holds: int = 0) -> list[Hold]:
    """Let processes compete for `seconds`, `rounds` and `holds`, while `torment` has its way with them."""
    until, latest = now() + seconds, now() + seconds + PATIENCE
    with ExitStack() as stack:
        crowd: list[Child] = []

        def hire() -> None:
            number = len(crowd)
            worker = stack.enter_context(child(lambda pipe: work(pipe, folder, number)))
            assert worker.report() == "ready"
            crowd.append(worker)

        for _ in range(PROCESSES):
            hire()
        torments = 0
        while now() < until or (now() < latest and (torments < rounds or len(read_holds(folder)) < holds)):
            torment(living(crowd), hire)
            torments += 1
        for worker in living(crowd):
            worker.pipe.send("stop")
        assert [worker.report() for worker in living(crowd)] == ["done"] * PROCESSES
    return read_holds(folder)


def living(crowd: list[Child]) -> list[Child]:
    """Return those that were not killed."""
    return [worker for worker in crowd if worker.process.is_alive()]


@contextmanager
def frozen(worker):
    """Keep the process from going on, if it isn't killed meanwhile."""
    os.kill(worker.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        if worker.process.is_alive():
            os.kill(worker.process.pid, signal.SIGCONT)


class Chaos:
    """Stops processes past their lease, kills them and hires others, and stops the server; seeded."""

    def __init__(self, server, folder: Path, seed: int) -> None:
        self.server, self.folder = server, folder
        self.chance = random.Random(seed)
        self.evils = itertools.cycle([self.stop, self.kill, self.kill_a_holder, self.stop, self.outage])
        self.rounds = 0

    def __call__(self, workers, hire) -> None:
        """Do the next evil to someone."""
        self.chance.shuffle(workers)
        next(self.evils)(workers, hire)
        self.rounds += 1
        time.sleep(self.chance.uniform(0, 0.05))  # a while without evil, in which they work

    def stop(self, workers, hire) -> None:
        """Pause a process, sometimes beyond its lease."""
        with frozen(workers[0]):
            time.sleep(self.chance.uniform(0.01, TTL * 1.6))  # the pause itself

    def kill(self, workers, hire) -> None:
        """End a process without a chance to clean up, and start another."""
        workers[0].kill()
        hire()

    def kill_a_holder(self, workers, hire) -> None:
        """End one that is caught with the lock: chance alone may miss them all."""
        until = now() + PATIENCE
        for worker in itertools.takewhile(lambda _: now() < until, itertools.cycle(workers)):
            with frozen(worker):
                if self.holds(worker):
                    return self.kill([worker], hire)
        raise AssertionError(f"no process took the lock for {PATIENCE:g} s")

    def holds(self, worker: Child) -> bool:
        """Tell by its own journal whether the frozen process is within a hold."""
        own = [hold for hold in read_holds(self.folder) if hold.process == worker.process.pid]
        return any(hold.leaving is None for hold in own)

    def outage(self, workers, hire) -> None:
        """Pause the server: requests are answered late, or after their senders gave up."""
        self.server.pause()
        time.sleep(self.chance.uniform(0.01, 0.2))  # the outage itself
        self.server.resume()


def test_histories_under_pauses_and_kills_exclude(own_redis, locks_on, tmp_path):
    """However processes and server are stopped and killed, no two claims overlap and tokens rise."""
    locks_on(own_redis.url, socket_timeout=0.1)
    chaos = Chaos(own_redis, tmp_path, seed=20)
    holds = run_workers(tmp_path, 6.0, chaos, rounds=8, holds=51)
    assert violations(holds) == []
    assert chaos.rounds >= 8
    assert len(holds) > 50
    assert any(hold.leaving is None for hold in holds), "no process was killed within a hold"


LOCK_MUTANTS = {
    "grants what another has": (
        b"if left == -2 then",
        b"if left ~= -2 then redis.call('DEL', KEYS[1]) left = -2 end\nif left == -2 then",
    ),
    "mints the same token forever": (
        b"return now, now, text",
        b"return 7, now, '7'",
    ),
}


@pytest.mark.parametrize(("old", "new"), list(LOCK_MUTANTS.values()), ids=list(LOCK_MUTANTS))
def test_histories_of_a_broken_lock_are_rejected(own_redis, locks_on, tmp_path, monkeypatch, old, new):
    """The check sees a lock whose scripts have one rule taken out, without any chaos."""
    read = scripts._read
    with monkeypatch.context() as patched:
        patched.setattr(scripts, "_read", lambda name: read(name).replace(old, new))
        mutants = {name: scripts.Script(*getattr(scripts, name).names) for name in ("ACQUIRE", "RELEASE")}
    assert mutants["ACQUIRE"].by_source != scripts.ACQUIRE.by_source
    for name, mutant in mutants.items():  # most grants are handoffs, which the release mints
        monkeypatch.setattr(scripts, name, mutant)
    locks_on(own_redis.url)
    holds = run_workers(tmp_path, 0.0, lambda crowd, hire: time.sleep(0.01), holds=50)  # as long as they work
    assert violations(holds)
