"""Locks in the database: a row each, or a session each: PostgreSQL's advisory locks.

rows               one row per lock: any database, with leases, tokens, a list and heartbeats
advisory           PostgreSQL's session locks: nothing is written, the connection is the lock; waiting in a
                   server's own queue, which the next have from here
transaction_locks  locks of the transaction itself, for `locked_transaction`: they end with its commit
sql                the statements of `rows` for each engine; no I/O
connection_pool    the connections of the locks, apart from yours
"""

from locking.backends.database.advisory import AdvisoryLockBackend
from locking.backends.database.rows import DatabaseBackend
from locking.backends.database.transaction_locks import RowLockBackend, TransactionLockBackend

__all__ = ["AdvisoryLockBackend", "DatabaseBackend", "RowLockBackend", "TransactionLockBackend"]
