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


def says_nothing(value: object) -> bool:
    """Whether a value is None, a lazy object standing for None (as `request.user` may), or an empty text."""
    return isinstance(value, type(None)) or (issubclass(type(value), str) and not value)


def as_text(value: object) -> str:
    """Turn a value into text by its kind; what could mean two things, or change, is refused."""
    if isinstance(value, Enum):
        return as_text(value.value)
    if isinstance(value, bool):
        raise LockKeyError(f"{value!r} is a bool, which does not identify a resource; pass its id")
    if isinstance(value, Model):
        return _model_text(value)
    for kind, convert in KINDS:
        if issubclass(type(value), kind):  # its real type: a lazy object only pretends
            return convert(value)
    raise LockKeyError(_unfit(value))


def _model_text(instance: Model) -> str:
    if instance.pk is None or instance._state.adding:
        raise LockKeyError(f"an unsaved {type(instance).__name__} has no identity yet; save it first")
    return as_text(instance.pk)


def _int_text(value: Any) -> str:
    try:
        return int.__repr__(value)
    except ValueError as error:  # Python refuses to print an int of thousands of digits
        raise LockKeyError(
            "an int with thousands of digits can't identify a resource; pass a shorter value"
        ) from error


def _datetime_text(value: Any) -> str:
    """One moment is one key, whichever zone it is given in."""
    try:
        return datetime.isoformat(value.astimezone(UTC) if value.tzinfo else value)
    except OverflowError as error:
        raise LockKeyError(f"{value} lies outside the calendar in UTC; pass a nearer moment") from error


KINDS: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (str, str.__str__),
    (int, _int_text),
    (UUID, UUID.__str__),
    (datetime, _datetime_text),
    (date, date.isoformat),
)


def _unfit(value: object) -> str:
    kind = type(value).__name__
    if callable(value):
        return f"a {kind} is callable, and keys call nothing; name an attribute, or give a callable key"
    if isinstance(value, float):
        return f"{value!r} is a float, which doesn't compare exactly; pass an int or a str"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"a {kind} has several values; name one, or give a callable key that returns several names"
    return f"a {kind} can't name a lock; pass a str, int, UUID, Enum, date or a saved model instance"


def _convert_int(value: object) -> str:
    text = as_text(value)
    if not re.fullmatch(r"-?[0-9]{1,4000}", text):
        raise LockKeyError(f"{_shown(text)} is not a whole number")
    return str(int(text))


def _convert_uuid(value: object) -> str:
    text = as_text(value)
    try:
        return str(UUID(text))
    except ValueError as error:
        raise LockKeyError(f"{_shown(text)} is not a UUID") from error


def _convert_slug(value: object) -> str:
    text = as_text(value)
    if not re.fullmatch(r"[-a-zA-Z0-9_]+", text):
        raise LockKeyError(f"{_shown(text)} is not a slug (letters, digits, '-' and '_')")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")


CONVERTERS: Final[Mapping[str | None, Callable[[object], str]]] = {
    None: as_text,
    "str": as_text,
    "int": _convert_int,
    "uuid": _convert_uuid,
    "slug": _convert_slug,
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
    return _balanced_head(name[: MAX_LENGTH - len(HASH_MARK) - HASH_DIGITS]) + HASH_MARK + digest


def _balanced_head(head: str) -> str:
    while not balanced(head):
        head = head[: head.rindex("{")]
    return head
