"""The thread that ends what an engine wouldn't end in time."""

import threading

import pytest

from locking.backends.holds import Hold, Holds
from locking.clock import now
from locking.testing.contract.base import until

PATIENCE = 10.0


@pytest.fixture
def ended(monkeypatch):
    """The keys of the holds that were ended, in order; a thread without any is soon over."""
    monkeypatch.setattr("locking.backends.holds.IDLE", 0.05)
    return []


def threads():
    """The threads of all holds in this process."""
    return {thread for thread in threading.enumerate() if thread.name == "locking-holds"}


def test_the_thread_ends_with_the_last_hold_and_starts_with_the_next(ended):
    """A process that made many backends isn't left with a thread for each."""
    others = threads()
    holds = Holds(lambda key, hold: ended.append(key))
    for number in range(2):
        holds.add(f"{number}", "me", Hold("node", 1, now()))
        until(lambda: len(ended) == number + 1, PATIENCE)  # noqa: B023 - called here only
        until(lambda: threads() <= others, PATIENCE)
    assert ended == ["0", "1"]


def test_the_thread_stays_while_something_is_held(ended):
    """However long that is: its end must be seen to."""
    holds = Holds(lambda key, hold: ended.append(key))
    holds.add("a", "me", Hold("node", 1, now() + 0.3))
    until(lambda: ended == ["a"], PATIENCE)
