"""Locks on etcd, through the JSON gateway that every etcd server has."""

from locking.backends.etcd.backend import EtcdBackend

__all__ = ["EtcdBackend"]
