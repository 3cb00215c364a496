"""Which acquisitions are guarded, so that another process may end them early: their owners tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from locking import current_lease, distributed_lock, get_lock, get_semaphore, locked_transaction
from locking.utils.ownership import is_guarded

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory_locks")]


def owner_in(block: Any) -> str:
    """Return who holds the lock in a block."""
    with block as lease:
        return str(lease.owner)


def owner_of_call(**options: Any) -> str:
    """Return who holds the lock of a decorated function."""

    @distributed_lock(key="'a'", **options)
    def work() -> str:
        return current_lease().owner

    return str(work())


GUARDED: dict[str, Callable[[], str]] = {
    "a user's word": lambda: owner_in(get_lock("a", guarded=True)),
    "a user's word about a permit": lambda: owner_in(get_semaphore("a", 2, guarded=True)),
    "a user's word about a transaction": lambda: owner_in(locked_transaction("a", guarded=True)),
    "a fence around a transaction": lambda: owner_in(locked_transaction("a", fenced=True)),
    "a fence around a function": lambda: owner_of_call(fenced=True),
    "a fence and retries": lambda: owner_of_call(fenced=True, retries=2),
}
LEFT_TO_THE_LEASE: dict[str, Callable[[], str]] = {
    "a lock": lambda: owner_in(get_lock("a")),
    "a token": lambda: owner_in(get_lock("a", fenced=True)),
    "a transaction": lambda: owner_in(locked_transaction("a")),
    "a token for the function itself": lambda: owner_of_call(fenced=True, atomic=False),
    "a fenced lock that stays": lambda: owner_of_call(fenced=True, release=False, ttl=1),
    "a lock that stays for a while": lambda: owner_in(get_lock("a", guarded=True, min_hold=0.01)),
}


@pytest.mark.parametrize("acquire", GUARDED.values(), ids=GUARDED)
def test_what_the_database_guards_may_end_early(acquire: Callable[[], str]) -> None:
    """Behind the fence in a locked transaction, or where the user says so."""
    assert is_guarded(acquire())


@pytest.mark.parametrize("acquire", LEFT_TO_THE_LEASE.values(), ids=LEFT_TO_THE_LEASE)
def test_everything_else_is_left_to_its_lease(acquire: Callable[[], str]) -> None:
    """That a token was asked for orders nothing, and what is to outlast its process stays."""
    assert not is_guarded(acquire())
