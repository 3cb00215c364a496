"""From a value to a piece of a key: which kinds may name a lock, how they are written and kept apart."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from django.db.models import Model

from locking.exceptions import LockKeyError
from locking.keys.names import balanced

MAX_LENGTH: Final = 200
HASH_MARK: Final = "%~"  # a percent sign is otherwise always followed by two hexadecimal digits
HASH_DIGITS: Final = 32
ALWAYS_ENCODED: Final = r"\s:%{}\x00-\x1f\x7f-\x9f\ud800-\udfff"
DEFAULT_UNSAFE: Final = re.compile(f"[{ALWAYS_ENCODED}=]")
TEXT_UNSAFE: Final = re.compile(r"[%\ud800-\udfff]")


def as_text(value: Any) -> str:
    """Turn a value into text by its kind, None into an empty one; what could mean two things, or change, is
    refused.
    """
    convert = KINDS.get(type(value))  # nearly always there
    if convert is None:
        if isinstance(value, type(None)):  # or a lazy object standing for None, as `request.user` may
            return ""
        if isinstance(value, Enum):
            return as_text(value.value)
        if isinstance(value, bool):
            raise LockKeyError(f"{value!r} is a bool, which does not identify a resource; pass its id")
        if isinstance(value, Model):
            if value.pk is None or value._state.adding:
                raise LockKeyError(f"an unsaved {type(value).__name__} has no identity yet; save it first")
            return as_text(value.pk)
        # By its real type: a lazy object only pretends.
        convert = next((KINDS[kind] for kind in type(value).__mro__ if kind in KINDS), None)
        if convert is None:
            raise LockKeyError(_unfit(value))
    try:
        return convert(value)
    except ValueError as error:  # Python refuses to print an int of thousands of digits
        what = "an int with thousands of digits can't identify a resource; pass a shorter value"
        raise LockKeyError(what) from error
    except OverflowError as error:
        raise LockKeyError(f"{value} lies outside the calendar in UTC; pass a nearer moment") from error


KINDS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: str.__str__,
    int: int.__repr__,
    UUID: UUID.__str__,
    # One moment is one key, whichever zone it is given in.
    datetime: lambda value: datetime.isoformat(value.astimezone(UTC) if value.tzinfo else value),
    date: date.isoformat,
}


def _unfit(value: object) -> str:
    kind = type(value).__name__
    if callable(value):
        return f"a {kind} is callable, and keys call nothing; name an attribute, or give a callable key"
    if isinstance(value, float):
        return f"{value!r} is a float, which doesn't compare exactly; pass an int or a str"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"a {kind} has several values; name one, or give a callable key that returns several names"
    return f"{kind} values can't name a lock; pass a str, int, UUID, Enum, date or a saved model instance"


def _converter(what: str, pattern: str, convert: Callable[[str], object]) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = as_text(value)
        if not text:
            return text  # refused as empty, or the default's
        try:
            if re.fullmatch(pattern, text):
                return str(convert(text))
        except ValueError:
            pass
        raise LockKeyError(f"{text if len(text) <= 80 else text[:77] + '…'!r} is not a {what}")

    return read


CONVERTERS: Final[Mapping[str | None, Callable[[object], str]]] = {
    None: as_text,
    "str": as_text,
    "int": _converter("whole number", r"-?[0-9]{1,4000}", int),
    "uuid": _converter("UUID", r"(?s:.*)", UUID),
    "slug": _converter("slug (letters, digits, '-' and '_')", r"[-a-zA-Z0-9_]+", str),
}


def encode(text: str, unsafe: re.Pattern[str]) -> str:
    """Percent-encode what would break a key, or let two values run into one another."""
    return unsafe.sub(_percent, text)


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def shorten(name: str) -> str:
    """Return the name; over 200 characters, its head and a hash that no shorter name can equal."""
    if len(name) <= MAX_LENGTH:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]
    head = name[: MAX_LENGTH - len(HASH_MARK) - HASH_DIGITS]
    while not balanced(head):
        head = head[: head.rindex("{")]
    return head + HASH_MARK + digest
