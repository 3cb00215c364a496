"""A holder in a process of its own: `python -m tests.locking.support.frozen_holder WHERE TTL`.

It takes the lock `shop` for TTL seconds and says when it has stopped; after a line it goes on, and says
at last what became of it. It doesn't look at its clock: what the fence prevents must not depend on it.
"""

from __future__ import annotations

import sys


def main(where: str, ttl: float) -> None:
    """Sell a unit behind the fence, stopping `before` or `behind` it."""
    import django

    django.setup()

    from django.contrib.auth.models import Group
    from django.db import Error
    from django.db.transaction import atomic

    from locking import LockError, get_lock
    from locking.transactions.fence import advance

    lease = get_lock("shop", fenced=True, ttl=ttl).acquire()

    def stop(place: str) -> None:
        if place == where:
            print("stopped", flush=True)
            sys.stdin.readline()

    try:
        stop("before")
        with atomic():
            advance("default", lease)
            stop("behind")
            Group.objects.create(name="frozen")
    except (LockError, Error) as error:
        print(type(error).__name__, flush=True)
    else:
        print("sold", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
