"""Locks on ZooKeeper, through kazoo."""

from locking.backends.zookeeper.backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
