"""Holdfast's `locking`: distributed locks for Django that are let go only after the commit."""

from locking.decorators import distributed_lock
from locking.exceptions import (
    BackendError,
    BackendUnavailable,
    LockError,
    LockKeyError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockNotSupported,
    LockTransactionError,
    StaleFencingToken,
)
from locking.kinds import get_fair_lock, get_read_lock, get_semaphore, get_write_lock
from locking.lease import Lease
from locking.lock import Lock, assert_locked, get_lock
from locking.transactions import locked_transaction

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "Lease",
    "Lock",
    "LockError",
    "LockKeyError",
    "LockLost",
    "LockNotAcquired",
    "LockNotOwned",
    "LockNotSupported",
    "LockTransactionError",
    "StaleFencingToken",
    "assert_locked",
    "distributed_lock",
    "get_fair_lock",
    "get_lock",
    "get_read_lock",
    "get_semaphore",
    "get_write_lock",
    "locked_transaction",
]
