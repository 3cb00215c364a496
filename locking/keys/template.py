"""The key grammar: from `"order:{order_id}"` and the arguments of a call to the name of a lock.

Two styles mean the same; an error answers in the one that was written, with the whole key to paste:

    order:{order.pk}       text, and {parameter.attribute|default:converter}
    'order:'+<order.pk>    'text' or "text", and <converter:parameter.attribute|'default'>, joined by +

A key is read once, at decoration, and a mistake in it is an error then. At a call only attributes are read:
nothing is evaluated, called or indexed.

Two rules keep unrelated callers apart. A value that says nothing (None, missing, empty) is refused, because
all of them would share one lock. And values can't run into one another: in a value `:`, `%`, braces, white
space, control characters and the key's own separating marks are percent-encoded, so that `1:2` and `3` is
not `1` and `2:3`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from django.core.exceptions import ObjectDoesNotExist

from locking.exceptions import LockKeyError
from locking.keys.names import balanced
from locking.keys.values import ALWAYS_ENCODED, CONVERTERS, TEXT_UNSAFE, encode, shorten

FORMAT_STYLE: Final = re.compile(r"""[^'"<>]*(?<![$#%]){[^'"<>]*""")
"""`order:{order_id}`: braces and neither quotes nor angle brackets. `${id}` and `#{id}` are of others."""

FORMAT_TERM: Final = re.compile(r"(?P<text>[^{}]+)|{(?P<value>[^{}]*)}")
QUOTED_TERM: Final = re.compile(
    r"""\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|<(?P<value>(?:[^<>'"]|'[^']*'|"[^"]*")*)>)\s*"""
)
PATH: Final = r"\s*(?P<path>[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)*)\s*"
FORMAT_VALUE: Final = re.compile(
    rf"{PATH}(?:\|\s*(?P<default>[^:]*?)\s*)?(?::\s*(?P<converter>.*?)\s*)?", re.DOTALL
)
QUOTED_VALUE: Final = re.compile(
    rf"""\s*(?:(?P<converter>\w+)\s*:)?{PATH}(?:\|\s*(?P<quote>['"]?)(?P<default>.*?)(?P=quote)\s*)?""",
    re.DOTALL,
)
FOREIGN: Final = r"[#$%]?{\s*([\w.]+)\s*}|[#$]([^\W\d][\w.]*)|<\s*#([\w.]+)\s*>|%\((\w+)\)s"
"""How others write a value: SpEL, a shell, an f-string, printf. Compiled when a key is wrong."""


@dataclass(frozen=True, slots=True)
class Value:
    """A piece of a key that is read from the arguments of the call.

    Attributes:
        written: the piece as it stands in the key, with its brackets.
        column: where it begins, behind its bracket.
        path: where the parameter and its attributes begin and end.
    """

    name: str
    attributes: tuple[str, ...]
    converter: str | None
    default: str | None
    written: str
    column: int
    path: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Template:
    """A key that was read and found sound. Make one with `compile_template`.

    Attributes:
        terms: its texts and values, in order.
        pieces: the same, the texts encoded.
        unsafe: what values must not hold.
    """

    source: str
    quoted: bool
    terms: tuple[str | Value, ...]
    pieces: tuple[str | Value, ...]
    unsafe: re.Pattern[str]

    @property
    def values(self) -> tuple[Value, ...]:
        """The pieces that come from the call, in order."""
        return tuple(term for term in self.terms if isinstance(term, Value))

    @property
    def readable(self) -> str:
        """The key as a person reads it: `order:<order.pk>` in either style."""
        return "".join(term if isinstance(term, str) else f"<{_path(term)}>" for term in self.terms)

    def render(self, arguments: Mapping[str, object]) -> str:
        """Build the name of the lock.

        Returns:
            The name, at most 200 characters: a longer one ends in a hash of the whole.

        Example:
            >>> compile_template("order:{id}").render({"id": 42})
            'order:42'
        """
        texts = [
            piece if isinstance(piece, str) else encode(self._text(piece, arguments), self.unsafe)
            for piece in self.pieces
        ]
        return shorten("".join(texts))

    def _text(self, value: Value, arguments: Mapping[str, object]) -> str:
        """Return a value's text, not yet encoded."""
        if value.name not in arguments and value.default is None:  # a function with `**kwargs`
            given = ", ".join(arguments) or "none"
            advice = self.advice(value, arguments)
            raise LockKeyError(f"the call has no argument {value.name}; it has {given}{advice}")
        found = arguments.get(value.name)
        for attribute in value.attributes:
            if isinstance(found, type(None)):
                break
            try:
                found = getattr(found, attribute)
            except (AttributeError, ObjectDoesNotExist) as error:
                if value.default is None:
                    raise self._no_attribute(value, found, attribute) from error
                found = None
        try:
            text = CONVERTERS[value.converter](found)
        except LockKeyError as error:
            raise LockKeyError(f"{value.written}: {error}") from error.__cause__
        if text:
            return text
        if value.default is not None:
            return value.default
        what = "None" if isinstance(found, type(None)) else "empty"
        raise LockKeyError(
            f"{value.written} is {what}: unrelated callers would share one lock; pass a value, or give a"
            f" default if they should: {self._repaired(value)}"
        )

    def _no_attribute(self, value: Value, owner: object, attribute: str) -> LockKeyError:
        guess = _nearest(attribute, dir(owner))
        meant = _path(value, guess, instead_of=attribute) if guess else None
        advice = "did you mean" if guess else "name one that it has, or give a default:"
        return LockKeyError(
            f"{value.written}: {type(owner).__name__} has no {attribute!r}; {advice}"
            f" {self._repaired(value, meant)}"
        )

    def advice(self, value: Value, known: Iterable[str]) -> str:
        """Return the whole key with the known name that was probably meant, or nothing."""
        guess = _nearest(value.name, known)
        meant = guess and _path(value, guess, instead_of=value.name)
        return f"; did you mean {self._repaired(value, meant)}?" if guess else ""

    def _repaired(self, value: Value, path: str | None = None) -> str:
        """Return the whole key with another path in one value, or else with a default, ready to paste."""
        default = "" if path else "|'none'" if self.quoted else "|none"
        begin, end = value.path
        return f'"{self.source[:begin]}{path or self.source[begin:end]}{default}{self.source[end:]}"'

    def check(self, signature: inspect.Signature, function_name: str) -> None:
        """Refuse a name that isn't a parameter; with `**kwargs` any name may come at the call."""
        parameters = signature.parameters
        for match in re.finditer(r"\{(\w+)[^{}]*\}", self.source) if not self.values else ():
            if match[1] in parameters:  # a lone text: it would be one lock for all
                raise _error(
                    self.source, match.start(), f"quoted text isn't formatted{_repaired(self.source)}"
                )
        for value in self.values:
            parameter = parameters.get(value.name)
            if parameter is None and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
                known = ", ".join(parameters) or "none at all"
                reason = f"{value.name!r} is not a parameter of {function_name} (it has {known})"
                raise _error(self.source, value.column, reason + self.advice(value, parameters))
            if parameter and parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                reason = f"{value.name!r} has several arguments: name one parameter, or give a callable key"
                raise _error(self.source, value.column, reason)


def compile_template(source: str) -> Template:
    """Read a key, once: the same source gives the same object.

    Args:
        source: the key, such as `order:{id}`.

    Raises:
        LockKeyError: it isn't one; the message points at the column and suggests the fix.

    Example:
        >>> compile_template("'order:'+<order.pk>").render({"order": order})    # doctest: +SKIP
        'order:42'
    """
    if not isinstance(source, str):
        raise LockKeyError(f'a key template is a str, not {source!r}: write key="order:{{id}}"')
    try:
        return _compile(source)
    except _Mistake as found:
        column, reason = found.args
        raise _error(source, column, reason + _repaired(source)) from None


class _Mistake(Exception):
    """The column at which the source of a key is wrong, and the reason."""


@lru_cache(maxsize=1024)
def _compile(source: str) -> Template:
    quoted = FORMAT_STYLE.fullmatch(source) is None
    terms: list[str | Value] = []
    for term in _terms(source, quoted=quoted):
        if isinstance(term, str) and terms and isinstance(terms[-1], str):
            terms[-1] += term
        else:
            terms.append(term)
    if not balanced("".join(term if isinstance(term, str) else "x" for term in terms)):
        # A cluster finds a key's slot by its braces, and Redisson derives names from them.
        column = next((i for i, char in enumerate(source) if char in "{}"), 0)
        raise _Mistake(column, "the braces of a key must be balanced and hold something")
    if terms == [""]:
        raise _Mistake(0, "the key is empty: unrelated callers would share one lock")
    marks = "".join(map(_separating_mark, ["", *terms], terms, [*terms[1:], ""]))
    pieces = tuple(encode(term, TEXT_UNSAFE) if isinstance(term, str) else term for term in terms)
    return Template(source, quoted, tuple(terms), pieces, re.compile(f"[{ALWAYS_ENCODED}{re.escape(marks)}]"))


def _terms(source: str, *, quoted: bool) -> Iterator[str | Value]:
    """Read a key in either style, term by term; the first mistake is raised."""
    at = 0
    while True:
        match = (QUOTED_TERM if quoted else FORMAT_TERM).match(source, at)
        if match is None:
            rest = source[at:].lstrip()
            reason = "this brace has no partner; literal braces need the quoted style: 'text'+<parameter>"
            if quoted:
                no_term = "a term is expected here: 'text' or <parameter>"
                reason = "this '<' is never closed" if rest.startswith("<") else no_term
            raise _Mistake(len(source) - len(rest), reason)
        kind = str(match.lastgroup)
        yield _read_value(source, *match.span(kind), quoted=quoted) if kind == "value" else match[kind]
        at = match.end()
        if at == len(source):
            return
        if quoted and source[at] != "+":
            raise _Mistake(at, "a '+' is missing before this")
        at += quoted


def _read_value(source: str, column: int, end: int, *, quoted: bool) -> Value:
    match = (QUOTED_VALUE if quoted else FORMAT_VALUE).fullmatch(source, column, end)
    if match is None:
        if "!" in source[column:end]:
            reason = "there are no conversions in format specs of a key; write the parameter's name alone"
        else:
            reason = (
                "a value is a parameter and its .attributes; what calls or indexes belongs in a callable key"
            )
        raise _Mistake(column, reason)
    name, *attributes = (part.strip() for part in match["path"].split("."))
    if any(part.startswith("_") for part in (name, *attributes)):
        raise _Mistake(column, "a name with a leading underscore is private, and not read")
    converter = match["converter"] or None
    if converter not in CONVERTERS:
        guess = _nearest(str(converter), filter(None, CONVERTERS))
        advice = f"; did you mean {guess}?" if guess else ""
        raise _Mistake(column, f"{converter!r} is not a converter (str, int, uuid or slug){advice}")
    if match["default"] == "":
        raise _Mistake(column, "an empty default would be one lock for unrelated callers; write 'none'")
    written = source[column - 1 : end + 1]
    return Value(name, tuple(attributes), converter, match["default"], written, column, match.span("path"))


def _path(value: Value, name: str | None = None, *, instead_of: str | None = None) -> str:
    """Return a value's parameter and attributes, `order.pk`, with another name instead of one of them."""
    return ".".join(name if name and each == instead_of else each for each in (value.name, *value.attributes))


def _separating_mark(before: str | Value, term: str | Value, after: str | Value) -> str:
    """Return what values must not hold because this text keeps two of them apart."""
    if not isinstance(before, Value):
        return ""
    if isinstance(term, Value):
        reason = "two values are adjacent: '1' and '23' would read as '12' and '3'; put ':' between"
        raise _Mistake(term.column, reason)
    if not isinstance(after, Value) or re.search(r"[\s:{}]", term):  # encoded in any case
        return ""
    if spare := re.search(r"[^%0-9A-Za-z]", term):
        return spare[0]
    reason = f"{term!r} can't keep the values before and after it apart; use a text with ':'"
    raise _Mistake(after.column, reason)


def _repaired(source: str) -> str:
    """Return the key that was probably meant, as advice to paste; nothing where that is none either."""
    found = re.split(r"(<[^<>]*>)", re.sub(FOREIGN, lambda m: f"<{m[m.lastindex or 0]}>", source))
    for index in range(0, len(found), 2):  # the texts between the values
        found[index] = re.sub(r"^\s*[fF](?=['\"])|['\"]|^\s*\+|\+\s*$", "", found[index]).strip()
    if len(found) == 1:  # as a lone text it would be one lock for all
        meant = f"""; without a value all calls share one lock: write "'{source}'" if you mean that"""
        return meant if re.fullmatch(r"[\w:.-]+", source) else ""
    if {"<", "+"}.isdisjoint(source):
        whole = "".join("{" + term[1:-1] + "}" if i % 2 else term for i, term in enumerate(found))
    else:
        whole = "+".join(term if i % 2 else f"'{term}'" for i, term in enumerate(found) if term)
    try:
        return f'; write "{whole}"' if whole != source and _compile(whole) else ""
    except _Mistake:
        return ""


def _error(source: str, column: int, reason: str) -> LockKeyError:
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", source)
    return LockKeyError(f"key template, column {column + 1}: {reason}\n    {shown}\n    {' ' * column}^")


def _nearest(word: str, known: Iterable[str]) -> str | None:
    found = get_close_matches(word, [name for name in known if not name.startswith("_")], n=1, cutoff=0.6)
    return found[0] if found else None
