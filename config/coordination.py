"""Lock aliases of the demo for coordination services that the environment names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ZOOKEEPER = "ZOOKEEPER_HOSTS"
ETCD = "ETCD_ENDPOINTS"
REDLOCK = "REDLOCK_URLS"


def lock_aliases(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the entries of `LOCKING` for the services that there are.

    Args:
        environment: ZOOKEEPER_HOSTS, such as `zk1:2181,zk2:2181/locks`; ETCD_ENDPOINTS, such as
            `http://etcd1:2379,http://etcd2:2379`; REDLOCK_URLS, three or more of independent Redis servers.

    Example:
        >>> sorted(lock_aliases({"ZOOKEEPER_HOSTS": "localhost:2181"}))
        ['zookeeper']
    """
    aliases: dict[str, dict[str, Any]] = {}
    if hosts := environment.get(ZOOKEEPER):
        backend = "locking.backends.zookeeper.ZooKeeperBackend"
        aliases["zookeeper"] = {"BACKEND": backend, "LOCATION": hosts}
    if endpoints := environment.get(ETCD):
        backend = "locking.backends.etcd.EtcdBackend"
        aliases["etcd"] = {"BACKEND": backend, "LOCATION": endpoints.split(",")}
    if urls := environment.get(REDLOCK):
        backend = "locking.backends.redlock.RedlockBackend"
        aliases["redlock"] = {"BACKEND": backend, "LOCATION": urls.split(",")}
    return aliases
