"""Engines that keep contenders in a queue of their own: ZooKeeper and etcd."""
