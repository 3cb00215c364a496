"""What a TypeError says to those who come from another library's locks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final

HINTS: Final = {
    "timeout": "the length of the lease is ttl= (seconds), the time to wait for the lock is wait=",
    "blocking_timeout": "the time to wait for the lock is wait= (seconds)",
    "blocking": "use try_acquire(), or wait=0; wait=None waits without end",
    "expire": "the length of the lease is ttl= (seconds); without it the lease is renewed",
    "auto_renewal": "leave ttl= out: such a lease is renewed until its release",
    "auto_release_time": "the length of the lease is ttl= (seconds)",
    "lease_time": "the length of the lease is ttl= (seconds)",
    "wait_time": "the time to wait for the lock is wait= (seconds)",
    "sleep": "leave it out: waiters are woken by the release, and don't poll",
    "thread_local": "leave it out: a Lock may be shared, each thread and task has its own lease",
    "name": "names go first, without a keyword: get_lock('order:42')",
}
"""By a keyword of redis-py, python-redis-lock, pottery or Redisson, what to write here."""


def refuse_unknown(caller: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for the first of the `given` keywords that `caller` does not take."""
    for keyword in given:
        if keyword in known:
            continue
        guess = get_close_matches(keyword, known, n=1)
        advice = f"did you mean {guess[0]}?" if guess else f"it has {', '.join(sorted(known))}"
        raise TypeError(f"{caller}() has no argument {keyword!r}: {HINTS.get(keyword, advice)}")
