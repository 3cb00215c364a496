"""`FencedModel`: a row that carries the token itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from django.db import connection, models

from locking import LockLost, LockNotOwned, StaleFencingToken, get_lock
from locking.lease import Lease
from locking.models import FencedModel
from tests.locking.support import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


class Account(FencedModel):
    """Money, protected by a lock of its own."""

    balance = models.IntegerField(default=100)
    objects: models.Manager[Account] = models.Manager()

    class Meta:
        app_label = "fenced_tests"


@pytest.fixture
def account(transactional_db: None) -> Iterator[Account]:
    """An account with 100 in it."""
    with connection.schema_editor() as editor:
        editor.create_model(Account)
    yield Account.objects.create()
    with connection.schema_editor() as editor:
        editor.delete_model(Account)


def hold(name: str = "account") -> Lease:
    """Take the lock for a while."""
    return get_lock(name, fenced=True, ttl=60).acquire()


def test_the_newest_holder_writes(account: Account) -> None:
    """Values and expressions are written, read back, and carry the token of the hold."""
    with get_lock("account", fenced=True) as lease:
        account.fenced_update(lease, balance=models.F("balance") - 30)
        assert account.balance == 70
        account.fenced_update(lease, balance=60)
    stored = Account.objects.get()
    assert (stored.balance, stored.fence_token) == (60, lease.fencing_token)
    assert stored.fence_owner == lease.leases[0].owner


def test_a_holder_that_was_overtaken_does_not_write(account: Account, redis_room: redis.Redis) -> None:
    """The next holder has written: the one before is refused, with both tokens, and nothing changes."""
    old = hold()
    redis_room.flushdb()

    def overtake() -> int:
        with get_lock("account", fenced=True) as lease:
            Account.objects.get().fenced_update(lease, balance=1)
            return lease.fencing_token

    newer = elsewhere(overtake)
    with pytest.raises(StaleFencingToken, match=f"{old.fencing_token}.*{newer}"):
        account.fenced_update(old, balance=99)
    assert Account.objects.get().balance == 1


def test_a_number_minted_twice_belongs_to_the_first(account: Account, redis_room: redis.Redis) -> None:
    """The same token of another owner is refused."""
    first = hold()
    account.fenced_update(first, balance=1)
    redis_room.flushdb()
    second = elsewhere(hold)
    second.leases[0].token = first.fencing_token
    with pytest.raises(StaleFencingToken):
        account.fenced_update(second, balance=2)
    assert Account.objects.get().balance == 1


def test_a_lease_that_has_ended_does_not_even_ask(
    account: Account, django_assert_num_queries: object
) -> None:
    """What is known to be over needs no database to say so."""
    lost, released = hold(), hold("other")
    lost.leases[0].lose()
    released.release()
    with django_assert_num_queries(0):  # type: ignore[operator]
        with pytest.raises(LockLost):
            account.fenced_update(lost, balance=1)
        with pytest.raises(LockNotOwned):
            account.fenced_update(released, balance=1)


def test_a_row_that_is_gone_is_told_from_a_stale_token(account: Account) -> None:
    """Deleted is deleted, not overtaken."""
    Account.objects.all().delete()
    with pytest.raises(Account.DoesNotExist, match="no longer"):
        account.fenced_update(hold(), balance=1)


def test_a_lease_of_several_names_is_refused(account: Account) -> None:
    """Which of the tokens protects the row must be said."""
    with get_lock("a", "b", fenced=True) as lease:
        with pytest.raises(ValueError, match=r"lease\.leases"):
            account.fenced_update(lease, balance=1)
        account.fenced_update(lease.leases[1], balance=1)
    assert Account.objects.get().balance == 1


def test_a_lease_without_a_token_is_refused(account: Account) -> None:
    """A backend without tokens can protect no row."""
    lease = hold()
    lease.leases[0].token = 0
    with pytest.raises(ValueError, match="fenced=True"):
        account.fenced_update(lease, balance=1)
