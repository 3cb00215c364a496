"""Holdfast's `locking`: distributed locks for Django that are released only after the commit."""

from locking import contrib, exceptions
from locking.core import kinds
from locking.core.kinds import *  # noqa: F403 - a kind's function is named where it is defined
from locking.core.lease import Lease, State, exit_on_sigterm
from locking.core.lock import Lock, assert_locked, current_lease, get_lock
from locking.exceptions import *  # noqa: F403 - as is an error
from locking.transactions.decorator import distributed_lock
from locking.transactions.locked_transaction import locked_transaction
from locking.transactions.responses import conflict_response

contrib.register_task_queues()

__version__ = "0.1.0"

__all__ = [
    "Lease",
    "Lock",
    "State",
    "assert_locked",
    "conflict_response",
    "current_lease",
    "distributed_lock",
    "exit_on_sigterm",
    "get_lock",
    "locked_transaction",
]
__all__ += [*kinds.__all__, *exceptions.__all__]
