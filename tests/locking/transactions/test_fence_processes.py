"""A real process, frozen beyond its lease: whatever it does when it wakes up changes nothing."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import Group

from locking import locked_transaction
from tests.locking.support.helpers import committed
from tests.support.warm import WarmProcess

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def holder(where: str, ttl: float) -> Iterator[WarmProcess]:
    """A process that has the lock, and has stopped `before` or `behind` its fence."""
    module = ["-m", "tests.locking.support.frozen_holder", where, str(ttl)]
    with WarmProcess(module, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == "stopped\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("where", "outcome"),
    [("before", "StaleFencingToken"), pytest.param("behind", "InternalError", marks=pytest.mark.whole)],
)
def test_a_holder_that_was_frozen_beyond_its_lease_changes_nothing(where: str, outcome: str) -> None:
    """SIGSTOP before or behind the fence: the next holder gets in and sells, the frozen one is refused."""
    with holder(where, ttl=1.0) as frozen:
        frozen.send_signal(signal.SIGSTOP)
        with locked_transaction("shop", fenced=True, wait=20):
            Group.objects.create(name="next")
        frozen.send_signal(signal.SIGCONT)
        said, _ = frozen.communicate("\n", timeout=20)
    assert said.split() == [outcome]
    assert committed() == ["next"]


def test_a_holder_that_was_frozen_briefly_goes_on() -> None:
    """Frozen and woken up within its lease it sells, as if nothing had been."""
    with holder("behind", ttl=60.0) as frozen:
        frozen.send_signal(signal.SIGSTOP)
        frozen.send_signal(signal.SIGCONT)
        said, _ = frozen.communicate("\n", timeout=20)
    assert said.split() == ["sold"]
    assert committed() == ["frozen"]
