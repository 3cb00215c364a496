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
    "get_lock",
    "locked_transaction",
]
