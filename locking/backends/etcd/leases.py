"""Leases of etcd, in whole seconds: a key that is bound to one ends with it."""

from __future__ import annotations

import math

from locking.backends.etcd.client import NOT_FOUND, Client, Refused


def ended_by_us(not_found: Refused) -> bool:
    """Whether a lease that was not found was most likely ended by an earlier try of the same request."""
    return not_found.repeated


class Leases:
    """The four requests about leases."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def grant(self, lease: int, ttl: float) -> None:
        """Have the lease, new or as a former try left it: then it must be renewed."""
        try:
            self._client.ask("/lease/grant", TTL=str(math.ceil(ttl)), ID=str(lease))
        except Refused as error:
            if "already exists" not in error.text:
                raise
            self.renew(lease)

    def renew(self, lease: int) -> bool:
        """Give the lease its full length again; False when it has ended."""
        answer = self._client.ask("/lease/keepalive", ID=str(lease))
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def revoke(self, lease: int) -> bool:
        """End a lease, which deletes its keys; False when it had ended already.

        The request may have been carried out by a member whose answer was lost before another member was
        asked: that the lease is gone then means that this request ended it.
        """
        try:
            self._client.ask("/lease/revoke", ID=str(lease))
        except Refused as error:
            if error.code == NOT_FOUND:
                return ended_by_us(error)
            raise
        return True

    def left(self, lease: int) -> int:
        """Return the whole seconds that are left of a lease, rounded down; 0 or less when it has ended."""
        return int(self._client.ask("/lease/timetolive", ID=str(lease)).get("TTL", 0))
