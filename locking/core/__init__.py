"""Locks and leases: what every backend has in common."""
