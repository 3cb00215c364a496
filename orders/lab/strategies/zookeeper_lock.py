"""Sound, with the database behind it: a lock that several ZooKeeper servers agree on."""

from __future__ import annotations

from orders.lab.strategies.coordinated import Coordinated


class ZooKeeperLock(Coordinated):
    """Idea:
        Each buyer puts a numbered node down, bound to its session, and watches the one before it. The lowest
        number has the lock. A majority of the servers agrees on every node before it counts.

    Interleaving:
        A has number 7 and reads 1; B has 8 and watches 7. A sells, commits, and deletes its node: that wakes
        B, which reads 0. If A is killed, its session ends after a while, and its node with it.

    Verdict:
        Exact, with one transaction a product at a time, also while one of three servers is down. A session
        can end under a buyer that is paused for too long: UPDATE … WHERE on_hand >= n then refuses what the
        lock let through, and `fenced=True` every late write, by the number of ZooKeeper's own transaction.

    Cost:
        Two writes around each sale that a majority must have on disk; an ensemble to run. Worth it where one
        is run already, or where a lock must outlive the loss of a server.
    """

    name = "zookeeper_lock"
    lock_alias = "zookeeper"
    lock_setting = "ZOOKEEPER_HOSTS"
