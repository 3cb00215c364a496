"""What a TypeError says to those who come from another library's locks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final, Never, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

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


def with_hints(function: Callable[P, T]) -> Callable[P, T]:
    """Have a call with another library's keyword raise a TypeError that names ours."""
    known = {name: hint for name, hint in HINTS.items() if name not in inspect.signature(function).parameters}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # Only what Python says of this very call: the function has not begun, so no frame is below.
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                _hint(function.__name__, known, kwargs, error)
            raise

    return call


def _hint(name: str, known: dict[str, str], kwargs: dict[str, object], error: TypeError) -> None:
    for keyword in kwargs:
        if keyword in known:
            raise TypeError(f"{name}() has no argument {keyword!r}: {known[keyword]}") from error


def refuse_keywords(name: str, given: Mapping[str, object]) -> Never:
    """Raise the TypeError for keywords that `name` does not take, where a wrapper would cost a call."""
    keyword = next(iter(given))
    hint = HINTS.get(keyword)
    raise TypeError(f"{name}() has no argument {keyword!r}" + (f": {hint}" if hint else ""))
