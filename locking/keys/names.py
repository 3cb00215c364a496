"""What may be the name of a lock, a ttl and a wait: every argument is checked here, before any I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, cast, get_args

from django.db.models import Model

from locking.exceptions import LockKeyError

MIN_TTL: Final = 0.001  # seconds; Redis knows no shorter lease
MAX_TTL: Final = 7 * 24 * 3600.0  # seconds; a longer lease is a forgotten lock, not a lease
MAX_NAME: Final = 1024  # characters; names built by a template are hashed long before that
MAX_TEMPLATE: Final = 200  # characters of what labels a group of names


class Unset:
    """The type of `UNSET`, which tells *not given* from None (None is a meaningful ttl and wait)."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


def check_name(name: object) -> str:
    """Return `name` if a lock may have it, else raise LockKeyError."""
    # Unbalanced braces are refused because Redis Cluster takes the text between braces as the place of a
    # key: names derived from such a name would land on different servers.
    if not isinstance(name, str):
        kind, instead = type(name).__name__, "str(…) of it"
        if isinstance(name, list | tuple | set):
            instead = "its items one by one: get_lock(*names)"
        elif isinstance(name, Model):  # its text is for people, and two rows may share it
            instead = f"f'{kind.lower()}:{{{kind.lower()}.pk}}'"
        raise LockKeyError(f"a lock's name must be a str, not {name!r} ({kind}); pass {instead}")
    if not name.strip():
        raise LockKeyError(f"a lock's name can't be empty ({name!r}): unrelated callers would share one lock")
    if len(name) > MAX_NAME:
        raise LockKeyError(
            f"a lock's name has at most {MAX_NAME} characters, {name[:40]!r}… has {len(name)}; hash it"
        )
    if ("{" in name or "}" in name) and not balanced(name):
        raise LockKeyError(
            f"the braces in the lock's name {name!r} don't pair up; leave them out or close them"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise LockKeyError(f"the lock's name {name!r} is not valid Unicode: {error}") from None
    return name


def balanced(name: str) -> bool:
    """Return whether each brace has its partner, in order, with something between."""
    depth = 0
    for letter in name:
        depth += (letter == "{") - (letter == "}")
        if depth < 0:
            return False
    return depth == 0 and "{}" not in name


OnOpenTransaction = Literal["refuse", "ignore"]  # what to do where a lock is acquired in a transaction


def check_on_open_transaction(value: object, source: str = "on_open_transaction") -> OnOpenTransaction:
    """Return `value` if it says what to do inside an open transaction, else raise ValueError."""
    if value not in get_args(OnOpenTransaction):
        raise ValueError(f"{source}={value!r} must be 'refuse' or 'ignore'")
    return cast(OnOpenTransaction, value)


NeverSkips = Literal["auto", "raise", "retry"] | Callable[..., Any]
ConflictPolicy = NeverSkips | Literal["skip"]  # what `@distributed_lock` does instead of its function
POLICIES: Final = ("auto", "raise", "skip", "retry")


def check_policy(policy: object, *, source: str = "on_conflict") -> ConflictPolicy:
    """Return `policy` if `on_conflict` may have it, else raise ValueError."""
    if callable(policy) or policy in POLICIES:
        return cast(ConflictPolicy, policy)
    guess = get_close_matches(str(policy), POLICIES, n=1)
    advice = f"; did you mean {guess[0]!r}?" if guess else ""
    raise ValueError(f"{source}={policy!r} must be one of {', '.join(POLICIES)}, or a callable{advice}")


def check_names(names: tuple[object, ...]) -> tuple[str, ...]:
    """Return the names checked, each once and sorted: any two callers take them in one order."""
    if not names:
        raise LockKeyError("get_lock() needs at least one name, for example get_lock('order:42')")
    if len(names) == 1:
        return (check_name(names[0]),)
    return tuple(sorted({check_name(name) for name in names}))


def check_template(template: object) -> str:
    """Return `template`, the label of a group of names, if it can be one, else raise ValueError."""
    if not isinstance(template, str) or not template.strip() or len(template) > MAX_TEMPLATE:
        raise ValueError(
            f"template must be a text of 1 to {MAX_TEMPLATE} characters, such as 'order:<id>',"
            f" not {template!r}"
        )
    return template


def check_ttl(ttl: object, *, source: str = "ttl") -> float:
    """Return `ttl` in seconds as a float, else raise ValueError; `source` is what the message calls it."""
    seconds = _number(ttl, source)
    if not MIN_TTL <= seconds <= MAX_TTL:
        raise ValueError(f"{source} must be between {MIN_TTL} and {MAX_TTL:.0f} seconds, not {ttl!r}")
    return seconds


def check_wait(wait: object, *, source: str = "wait") -> float | None:
    """Return `wait` in seconds, or None for *without end*; raise ValueError for anything else."""
    if wait is None or (type(wait) is float and 0.0 <= wait < math.inf):
        return wait
    seconds = _number(wait, source)
    if seconds < 0:
        raise ValueError(
            f"{source} must be 0 (don't wait), positive seconds, or None (no limit), not {wait!r}"
        )
    return seconds


Seconds = float | timedelta  # a length of time, wherever one is given


def _number(value: object, source: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(
            f"{source} must be a number of seconds or a timedelta, not {value!r} ({type(value).__name__})"
        )
    if not math.isfinite(value):
        raise ValueError(f"{source} must be a finite number of seconds, not {value!r}")
    return float(value)
