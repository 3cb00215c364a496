"""Sound, with the database behind it: a lock that several etcd members agree on."""

from __future__ import annotations

from orders.lab.strategies.coordinated import Coordinated


class EtcdLock(Coordinated):
    """Idea:
        Each buyer writes a key bound to a lease of its own. The cluster numbers every change, and the key
        with the lowest number has the lock; who waits watches the key before its own.

    Interleaving:
        A's key is revision 70 and reads 1; B's is 71 and watches it. A sells, commits, and gives its lease
        up: the key goes, B is notified, makes sure that its own lease still lives, and reads 0.

    Verdict:
        Exact, with one transaction a product at a time, also while one of three members is down. A lease can
        end under a buyer that is paused for too long: UPDATE … WHERE on_hand >= n then refuses what the lock
        let through, and `fenced=True` every late write, by the revision of the buyer's key.

    Cost:
        Four requests around each sale, three of them writes that a majority must have on disk, by HTTP. Worth
        it where etcd is run already.
    """

    name = "etcd_lock"
    lock_alias = "etcd"
    lock_setting = "ETCD_ENDPOINTS"
