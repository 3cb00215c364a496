"""Locks in the database: a row each, or PostgreSQL's advisory locks.

rows         a row for each lock: any database, with leases, tokens and a list
advisory     PostgreSQL's session locks: nothing is written, the connection is the lock
scoped       locks of the transaction itself, for `locked_transaction`: they end with its commit
sql          what the rows' statements are on each engine; no I/O
listener         how waiters are woken: LISTEN and NOTIFY
connections  connections of the locks' own
sessions     PostgreSQL's sessions, each of which is a hold
"""

from locking.backends.database.advisory import AdvisoryLockBackend
from locking.backends.database.rows import DatabaseBackend
from locking.backends.database.transaction_locks import RowLockBackend, TransactionLockBackend

__all__ = ["AdvisoryLockBackend", "DatabaseBackend", "RowLockBackend", "TransactionLockBackend"]
