"""Holdfast's `locking`: distributed locks for Django that are let go only after the commit."""

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
    "get_lock",
]
