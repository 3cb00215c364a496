"""There is one clock in `locking`, and a test may turn it."""

import pytest

from locking import LockLost, get_lock
from locking.core.lease import State
from locking.testing.contract.base import elsewhere


def test_a_turned_clock_ends_a_lease_for_its_holder_and_in_its_store(memory_locks, turned_clock):
    """Anyone who imported `now`, by whatever way, reads the clock that was turned."""
    lease = get_lock("a", ttl=60).acquire()
    turned_clock.advance(30)
    assert 0 < lease.remaining() <= 30
    assert elsewhere(get_lock("a").try_acquire) is None

    turned_clock.advance(30)

    assert lease.state is State.LOST
    with pytest.raises(LockLost):
        lease.ensure_held()
    assert elsewhere(get_lock("a", ttl=60).try_acquire)
