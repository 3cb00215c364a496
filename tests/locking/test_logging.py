"""What is logged, at which level, and how often: the tree of `locking.*` loggers."""

import logging
import threading
from typing import Any

import pytest

from locking import BackendUnavailable, LockLost, get_lock
from locking.core.handler import locks
from locking.core.renewal import renew
from locking.testing import override_locks, simulate_loss, simulate_outage
from locking.utils import logs

pytestmark = pytest.mark.usefixtures("memory_locks")


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "locking")


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """What this thread has logged: one of an earlier test may still be at work."""
    return [record for record in caplog.records if record.thread == threading.get_ident()]


def levels(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.name, record.levelname) for record in logged(caplog)]


def test_an_outage_is_an_error_once_a_minute(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many acquisitions fail; the record after a minute says how many were left out."""
    moment = 100.0
    monkeypatch.setattr(logs, "now", lambda: moment)
    with simulate_outage():
        for _ in range(3):
            with pytest.raises(BackendUnavailable):
                get_lock("a").acquire()
        moment += logs.PERIOD
        with pytest.raises(BackendUnavailable):
            get_lock("a").acquire()
    first, second = [each for each in logged(caplog) if each.levelno == logging.ERROR]
    assert (first.name, first.lock_backend, first.lock_repeated) == ("locking.core.lock", "default", 0)
    assert second.lock_repeated == 2
    assert second.getMessage().endswith("(2 more since the last record)")


def test_the_end_of_an_outage_is_reported_once(caplog: Any) -> None:
    """By the first acquisition that succeeds."""
    with simulate_outage(), pytest.raises(BackendUnavailable):
        get_lock("a").acquire()
    for _ in range(2):
        get_lock("a").acquire().release()
    (reported,) = [each for each in logged(caplog) if "answers again" in each.getMessage()]
    assert reported.levelno == logging.WARNING


def test_renewals_that_fail_are_part_of_the_same_outage(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are tried twice a second, and logged once a minute."""
    lease = get_lock("a").acquire().leases[0]

    def fails(leases: Any) -> Any:
        raise BackendUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(locks["default"], "extend_many", fails)
        for _ in range(5):
            renew([lease])
    assert levels(caplog) == [("locking.core.renewal", "ERROR")]
    renew([lease])
    assert levels(caplog)[1:] == [("locking.core.renewal", "WARNING")]
    lease.release()


def test_a_loss_is_one_record(caplog: Any) -> None:
    """Whatever the body raises, and however the block ends."""
    for error in (None, ValueError("the body's own")):
        caplog.clear()
        with pytest.raises((LockLost, ValueError)), get_lock("a") as lease:
            simulate_loss(lease)
            if error:
                raise error
        assert levels(caplog) == [("locking.events", "WARNING")]


@pytest.mark.django_db(transaction=True)
def test_a_loss_in_a_transaction_is_one_record(caplog: Any) -> None:
    """The release after the rollback finds nothing new."""
    from locking import locked_transaction

    with pytest.raises(LockLost), locked_transaction("a") as lease:
        simulate_loss(lease)
    assert levels(caplog) == [("locking.events", "WARNING")]


def test_a_long_wait_is_logged(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An acquisition is a matter of DEBUG, after five seconds of waiting one of INFO."""
    get_lock("a").acquire().release()
    assert levels(caplog) == []
    monkeypatch.setattr("locking.signals.LONG_WAIT", 0.0)
    monkeypatch.setattr("locking.signals.LONG_WAIT", 0.0)
    with get_lock("a"):
        (record,) = logged(caplog)
    assert (record.levelname, record.lock_outcome, record.lock_name) == ("INFO", "acquired", "a")


def test_a_release_later_than_the_lease_was_meant_to_last_is_logged(caplog: Any) -> None:
    """A renewed lease outlives its ttl; that its holder took so long is worth a record."""
    lease = get_lock("a").acquire().leases[0]
    lease.taken_at -= 31.0
    lease.release()
    (record,) = logged(caplog)
    assert (record.levelname, record.lock_outcome) == ("INFO", "released")


def test_every_logger_hangs_below_locking() -> None:
    """One entry in LOGGING is for all of them."""
    import pkgutil
    from importlib import import_module

    import locking

    for found in pkgutil.walk_packages(locking.__path__, "locking."):
        if ".migrations" not in found.name:
            logger = getattr(import_module(found.name), "logger", None)
            assert logger is None or logger.name == found.name


def test_troubles_fill_no_memory(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a thousand all are forgotten."""
    monkeypatch.setattr(logs, "MOST", 3)
    for number in range(10):
        logs.log_rarely(logging.getLogger("locking"), logging.INFO, number, "trouble %d", number)
    assert len(logs.TROUBLES) <= 3


@override_locks()
def test_without_a_trouble_nothing_ends(caplog: Any) -> None:
    """A lock that was acquired says nothing of outages."""
    get_lock("a").acquire().release()
    assert levels(caplog) == []
