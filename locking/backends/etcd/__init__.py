"""Locks on etcd, through etcd3gw and the gateway that every etcd server has."""

from locking.backends.etcd.backend import EtcdBackend

__all__ = ["EtcdBackend"]
