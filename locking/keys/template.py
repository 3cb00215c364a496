"""The key grammar: from `'order:'+<id>` and the arguments of a call to the name of a lock.

    template = term {"+" term}
    term     = 'text' | "text" | "<" [conv ":"] name {"." attr} ["|" 'default'] ">"
    conv     = str | int | uuid | slug

Or, where a template has braces and neither quotes nor angle brackets, in the style of `str.format`:
`order:{order_id}` is `'order:'+<order_id>`.

A template is read once, at decoration, and every mistake that can be seen then is told then, with its column.
At a call only attributes are read: nothing is evaluated, called or indexed.

Two rules keep unrelated callers apart. A value that says nothing (None, missing, empty) is refused: everybody
would share one lock. And values can't run into one another: in a value `:`, `%`, braces, white space, control
characters and the template's own separating marks are percent-encoded, so that `1:2` and `3` is not `1` and
`2:3`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, Final, NoReturn

from django.core.exceptions import ObjectDoesNotExist
from django.http import HttpRequest

from locking.exceptions import LockKeyError
from locking.keys.names import MAX_NAME, MAX_TEMPLATE, balanced
from locking.keys.values import (
    ALWAYS_ENCODED,
    CONVERTERS,
    DEFAULT_UNSAFE,
    TEXT_UNSAFE,
    as_text,
    encode,
    says_nothing,
    shorten,
)

__all__ = ["KeyBuilder", "KeySource", "Template", "compile_template", "is_request", "key_builder"]

KeySource = str | Callable[..., "str | Sequence[str]"]
KeysSource = Sequence[str] | Callable[..., Iterable[str]]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
KeyBuilder = Callable[[Args, Kwargs], tuple[str, ...]]

KEEPS_APART: Final = re.compile(r"[\s:{}]")
SPARE_MARK: Final = re.compile(r"[^%0-9A-Za-z]")


# --- reading a template -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """A literal piece of a template."""

    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """A piece that is read from the arguments of the call: `<conv:name.attr|'default'>`."""

    name: str
    attributes: tuple[str, ...]
    converter: str | None
    default: str | None
    source: str
    column: int

    @property
    def dotted(self) -> str:
        """The parameter and its attributes: `order.pk`."""
        return ".".join((self.name, *self.attributes))

    def read(self, arguments: Mapping[str, object]) -> str:
        """Return this piece's text, not yet encoded; LockKeyError where the arguments give none."""
        found = self._find(arguments)
        if says_nothing(found):
            return self._fall_back(found)
        try:
            text = CONVERTERS[self.converter](found)
        except LockKeyError as error:
            raise LockKeyError(f"{self.source}: {error}") from error.__cause__
        return text or self._fall_back(found)

    def _find(self, arguments: Mapping[str, object]) -> object:
        found = arguments.get(self.name)
        for attribute in self.attributes:
            if isinstance(found, type(None)):
                return None
            found = self._attribute(found, attribute)
        return found

    def _attribute(self, owner: object, attribute: str) -> object:
        try:
            return getattr(owner, attribute)
        except (AttributeError, ObjectDoesNotExist) as error:
            if self.default is not None:
                return None
            raise LockKeyError(
                f"{self.source}: a {type(owner).__name__} has no {attribute!r}"
                f"{_did_you_mean(attribute, dir(owner))}; name an attribute that it has, or give a default:"
                f" {self.source[:-1]}|'none'>"
            ) from error

    def _fall_back(self, found: object) -> str:
        if self.default is not None:
            return self.default
        what = "None or missing" if isinstance(found, type(None)) else "empty"
        raise LockKeyError(
            f"{self.source} is {what}: unrelated callers would share one lock; pass a value,"
            f" or give a default if they should: {self.source[:-1]}|'none'>"
        )


@dataclass(frozen=True, slots=True)
class Template:
    """A template that was read and found sound. Make one with `compile_template`."""

    source: str
    terms: tuple[Text | Value, ...]
    unsafe: re.Pattern[str]

    @property
    def values(self) -> tuple[Value, ...]:
        """The pieces that come from the call, in order."""
        return tuple(term for term in self.terms if isinstance(term, Value))

    @property
    def readable(self) -> str:
        """The template as a person reads it: `'order:'+<order.pk>` is `order:<order.pk>`."""
        return "".join(t.text if isinstance(t, Text) else f"<{t.dotted}>" for t in self.terms)

    def render(self, arguments: Mapping[str, object]) -> str:
        """Build the name of the lock.

        Args:
            arguments: the call's arguments by parameter name.

        Returns:
            The name, at most 200 characters: a longer one ends in a hash of the whole.

        Raises:
            LockKeyError: a value is None, missing, empty, or of a kind that can't name a lock.

        Example:
            >>> compile_template("'order:'+<id>").render({"id": 42})
            'order:42'
        """
        pieces = (
            t.text if isinstance(t, Text) else encode(t.read(arguments), self.unsafe) for t in self.terms
        )
        return shorten("".join(pieces))

    def check(self, signature: inspect.Signature, function_name: str) -> None:
        """Refuse a name that isn't a parameter; with `**kwargs` any name may come at the call."""
        parameters = signature.parameters
        accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for value in self.values:
            self._check_value(value, parameters, function_name, accepts_any)
        if not self.values:
            self._check_braces(parameters)

    def _check_value(
        self, value: Value, parameters: Mapping[str, inspect.Parameter], function_name: str, accepts_any: bool
    ) -> None:
        parameter = parameters.get(value.name)
        if parameter is None and not accepts_any:
            known = ", ".join(parameters) or "none at all"
            advice = _did_you_mean(value.name, parameters, "<{}>")
            reason = f"{value.name!r} is not a parameter of {function_name} (it has {known}){advice}"
            raise _error(self.source, value.column, reason)
        if parameter is not None and parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            reason = (
                f"{value.name!r} stands for several arguments: name one parameter, or give a callable key"
            )
            raise _error(self.source, value.column, reason)

    def _check_braces(self, parameters: Iterable[str]) -> None:
        """A lone text with a parameter in braces was meant to be formatted: it would be one lock for all."""
        for match in re.finditer(r"\{(\w+)[^{}]*\}", self.source):
            if match[1] in parameters:
                reason = f"texts aren't formatted: {match[0]} stays as it is; write '…'+<{match[1]}>"
                raise _error(self.source, match.start(), reason)


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of a template's source; `kind` is text, name, mark, other or end."""

    kind: str
    text: str
    column: int


TOKENS: Final = re.compile(
    r"""(?P<text>'[^']*'|"[^"]*")|(?P<name>[^\W\d]\w*)|(?P<mark>[<>+|:.])|(?P<space>\s+)|(?P<other>.)""",
    re.DOTALL,
)


# What people write by habit from elsewhere, and what to write here instead; the first that fits is told.
HABITS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\Z"), "a term is missing here: write 'text' or <parameter>"),
    (re.compile(r"#(\w[\w.]*)"), "{0!r} is SpEL; write <{1}>"),
    (re.compile(r"[fF][rR]?['\"].*"), "f-strings aren't evaluated here; write 'text'+<parameter>"),
    (re.compile(r"\$?\{(\w[\w.]*)\}"), "{0!r} isn't evaluated here; write <{1}>"),
    (re.compile(r"[$%](\w+)"), "{0!r} isn't evaluated here; write <parameter>"),
    (re.compile(r"['\"]"), "this quote is never closed"),
    (re.compile(r">"), "this '>' has no matching '<'"),
    (re.compile(r"\("), "parentheses are not supported: a key can't call or group"),
    (
        re.compile(r"[\w:.,;/@=*!?&~^$%#-]+"),
        "{0!r} isn't quoted; write '{0}', or <parameter> for an argument",
    ),
    (re.compile(r".", re.DOTALL), "{0!r} is not understood here; write 'text' or <parameter>"),
)


class _Parser:
    """Recursive descent over the tokens; every refusal names the column."""

    def __init__(self, source: str) -> None:
        self.source = source
        found = [Token(m.lastgroup or "", m[0], m.start()) for m in TOKENS.finditer(source)]
        self.tokens = [token for token in found if token.kind != "space"] + [Token("end", "", len(source))]
        self.position = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def fail(self, reason: str, token: Token | None = None) -> NoReturn:
        raise _error(self.source, (token or self.token).column, reason)

    def fail_by_habit(self) -> NoReturn:
        """Explain what stands where a term should, by the habit that it looks like."""
        rest = self.source[self.token.column :]
        if "<" in self.source and not re.search("['\"{}]", self.source):
            parts = re.findall(r"<[^<>]+>|[^<>+]+", self.source)
            whole = "+".join(part if part.startswith("<") else f"'{part.strip()}'" for part in parts)
            self.fail(f'its text isn\'t quoted; write "{whole}"')
        for pattern, advice in HABITS:
            if match := pattern.match(rest):
                self.fail(advice.format(match[0], *match.groups()))
        raise AssertionError("the last habit fits everything")

    def take(self, kind: str, text: str | None = None) -> Token | None:
        """Consume the next token if it is of this kind (and this text)."""
        token = self.token
        if token.kind != kind or (text is not None and token.text != text):
            return None
        self.position += 1
        return token

    def template(self) -> list[Text | Value]:
        terms = [self.term()]
        while self.token.kind != "end":
            if self.token.kind == "text" or self.token.text == "<":
                self.fail("a '+' is missing between two terms")
            if not self.take("mark", "+"):
                self.fail_by_habit()
            terms.append(self.term())
        return terms

    def term(self) -> Text | Value:
        if text := self.take("text"):
            return Text(text.text[1:-1])
        opening = self.take("mark", "<")
        return self.value(opening) if opening else self.fail_by_habit()

    def value(self, opening: Token) -> Value:
        name = self.name("a parameter")
        converter = None
        if self.take("mark", ":"):
            converter = self.converter(name)
            name = self.name("a parameter")
        attributes = self.attributes()
        default = self.default()
        closing = self.closing(opening)
        source = self.source[opening.column : closing.column + 1]
        return Value(name.text, attributes, converter, default, source, name.column)

    def name(self, what: str) -> Token:
        name = self.take("name")
        if name is None:
            self.fail(f"{what} is expected here" + self.inside_advice())
        if name.text.startswith("_"):
            self.fail(f"{name.text!r} starts with an underscore: private names are not read", name)
        return name

    def converter(self, name: Token) -> str:
        if name.text not in CONVERTERS:
            advice = _did_you_mean(name.text, [c for c in CONVERTERS if c])
            self.fail(f"{name.text!r} is not a converter (str, int, uuid or slug){advice}", name)
        return name.text

    def attributes(self) -> tuple[str, ...]:
        names = []
        while self.take("mark", "."):
            names.append(self.name("an attribute").text)
        return tuple(names)

    def default(self) -> str | None:
        if not self.take("mark", "|"):
            return None
        text = self.take("text")
        if text is None:
            self.fail("a default is a quoted text: |'none'")
        if not text.text[1:-1]:
            self.fail("an empty default would be one lock for unrelated callers; write |'none'", text)
        return text.text[1:-1]

    def closing(self, opening: Token) -> Token:
        if closing := self.take("mark", ">"):
            return closing
        if self.token.kind == "end":
            self.fail("this '<' is never closed", opening)
        return self.fail("'>' is expected here" + self.inside_advice())

    def inside_advice(self) -> str:
        """Why a template is simpler than an expression, where one was written."""
        advice = {
            "(": ": a key can't call functions; compute it in a callable key",
            "[": ": a key can't index; compute it in a callable key",
            "#": ": write the parameter's bare name, without '#'",
        }
        found = self.token.text
        return advice.get(found, f", not {found!r}" if found else "")


def compile_template(source: str) -> Template:
    """Read a template, once: the same source gives the same object.

    Args:
        source: the template, such as `'order:'+<id>`.

    Raises:
        LockKeyError: it isn't one; the message points at the column and suggests the fix.

    Example:
        >>> compile_template("'order:'+<order.pk>").render({"order": order})    # doctest: +SKIP
        'order:42'
    """
    if not isinstance(source, str):
        raise LockKeyError(f"a key template is a str, not {source!r}: write key=\"'order:'+<id>\"")
    return _compile(source)


@lru_cache(maxsize=1024)
def _compile(source: str) -> Template:
    read = _format_terms(source) if FORMAT_STYLE.fullmatch(source) else _Parser(source).template()
    terms = _merge_texts(read)
    if not balanced("".join(t.text if isinstance(t, Text) else "x" for t in terms)):
        # A cluster finds a key's slot by its braces, and Redisson derives names from them.
        column = next((i for i, char in enumerate(source) if char in "{}"), 0)
        reason = "the braces of a key must be balanced and hold something; drop this one, or close it"
        raise _error(source, column, reason)
    if terms == (Text(""),):
        raise _error(source, 0, "the key is empty: unrelated callers would share one lock")
    return Template(source, terms, _unsafe(source, terms))


FORMAT_STYLE: Final = re.compile(r"""[^'"<>]*(?<![$#]){[^'"<>]*""")
"""`order:{order_id}`: braces and neither quotes nor angle brackets. `${id}` and `#{id}` are of others."""

FIELD: Final = re.compile(r"{([^{}]*)}")


def _format_terms(source: str) -> list[Text | Value]:
    """Read the format style: `order:{order.pk}` is `'order:'+<order.pk>`."""
    terms: list[Text | Value] = []
    end = 0
    for field in FIELD.finditer(source):
        terms += _format_text(source, end, field.start())
        terms.append(_format_value(source, field))
        end = field.end()
    return terms + _format_text(source, end, len(source))


def _format_text(source: str, start: int, end: int) -> list[Text | Value]:
    text = source[start:end]
    if stray := re.search(r"[{}]", text):
        reason = "this brace has no partner; literal braces need the quoted style: 'text'+<parameter>"
        raise _error(source, start + stray.start(), reason)
    return [Text(text)] if text else []


def _format_value(source: str, field: re.Match[str]) -> Value:
    """Read one field with the grammar's own reader; conversions, formats and indexes aren't part of it."""
    inside = field[1]
    for mark, reason in FORMAT_HABITS.items():
        if mark in inside:
            raise _error(source, field.start(1) + inside.index(mark), reason)
    parser = _Parser(" " * field.start() + f"<{inside}>")
    parser.source = source  # what an error shows
    (value,) = parser.template()
    assert isinstance(value, Value)
    return replace(value, source=f"<{inside.strip()}>")


FORMAT_HABITS: Final = {
    "!": "a key has no conversions; write the parameter's name alone",
    ":": "a key has no format specs; for a converter write 'text'+<int:name>",
    "[": "a key indexes nothing; compute it in a callable key",
    "(": "a key calls nothing; compute it in a callable key",
    "|": "a default needs the quoted style: 'text'+<name|'none'>",
}
"""What the braces of `str.format` may hold, and those of a key may not."""


def _merge_texts(terms: list[Text | Value]) -> tuple[Text | Value, ...]:
    """Neighbouring texts are one; a percent sign in a text is encoded as in a value."""
    merged: list[Text | Value] = []
    for term in terms:
        if isinstance(term, Text) and merged and isinstance(merged[-1], Text):
            merged[-1] = Text(merged[-1].text + term.text)
        else:
            merged.append(term)
    return tuple(Text(encode(t.text, TEXT_UNSAFE)) if isinstance(t, Text) else t for t in merged)


def _unsafe(source: str, terms: tuple[Text | Value, ...]) -> re.Pattern[str]:
    """What values must not hold: the usual, and one mark from each text that stands between two values."""
    marks = ""
    for before, term, after in zip(("", *terms), terms, (*terms[1:], ""), strict=False):
        if isinstance(before, Value) and isinstance(term, Value):
            reason = "two values are adjacent: '1' and '23' would read as '12' and '3'; put ':' between"
            raise _error(source, term.column, reason)
        if isinstance(before, Value) and isinstance(term, Text) and isinstance(after, Value):
            marks += _separating_mark(source, term.text, after)
    return re.compile(f"[{ALWAYS_ENCODED}{re.escape(marks)}]")


def _separating_mark(source: str, text: str, after: Value) -> str:
    if KEEPS_APART.search(text):
        return ""
    if match := SPARE_MARK.search(text):
        return match[0]
    raise _error(
        source, after.column, f"{text!r} can't keep the values before and after it apart; use a text with ':'"
    )


def _error(source: str, column: int, reason: str) -> LockKeyError:
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", source)
    return LockKeyError(f"key template, column {column + 1}: {reason}\n    {shown}\n    {' ' * column}^")


def _did_you_mean(word: str, known: Iterable[str], shape: str = "{}") -> str:
    matches = get_close_matches(word, [name for name in known if not name.startswith("_")], n=1, cutoff=0.6)
    return f"; did you mean {shape.format(matches[0])}?" if matches else ""


# --- from a call to names ---------------------------------------------------------------------------------


def key_builder(
    function: Callable[..., object],
    key: KeySource | None = None,
    keys: KeysSource | None = None,
) -> KeyBuilder:
    """Return the function that turns a call's `(args, kwargs)` into the names of its locks.

    Args:
        function: what is decorated; templates are checked against its signature here and now.
        key: a template, or a callable that gets the call's arguments and returns a name or several.
        keys: several templates, or a callable that gets the call's arguments and returns the names. Without
            either, the name is the function's dotted path and its arguments.

    Raises:
        LockKeyError: both are given, a template isn't one, or it names what isn't a parameter.

    Example:
        >>> def pay(order_id): ...
        >>> key_builder(pay, "order:{order_id}")((42,), {})
        ('order:42',)
    """
    if key is not None and keys is not None:
        raise LockKeyError("give key= or keys=, not both: keys=[…] takes one template or more")
    if callable(key):
        return partial(_call_key, key)
    if callable(keys):
        return partial(_call_keys, keys)
    # What `method_decorator` hands over pretends to be unbound; else the signature is what callers see.
    signature = inspect.signature(function, follow_wrapped=not isinstance(function, partial))
    if key is None and keys is None:
        return partial(_default_key, signature, dotted_path(function))
    templates = tuple(compile_template(source) for source in _sources(key, keys))
    for template in templates:
        template.check(signature, getattr(function, "__name__", repr(function)))
    return partial(_render_all, signature, templates)


def label_of(function: Callable[..., object], key: KeySource | None, keys: KeysSource | None) -> str:
    """Return what the names of all calls have in common: the readable template, or the function's path."""
    if callable(key) or callable(keys) or (key is None and keys is None):
        return dotted_path(function)[-MAX_TEMPLATE:]
    return ", ".join(compile_template(source).readable for source in _sources(key, keys))[:MAX_TEMPLATE]


def dotted_path(function: Callable[..., object]) -> str:
    """`module.qualified_name`, where the function has one."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def _sources(key: object, keys: Sequence[str] | None) -> Sequence[Any]:
    if keys is None:
        return (key,)
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
        raise LockKeyError(
            f"keys={keys!r} is not a list of templates: write keys=[\"'sku:'+<a>\", \"'sku:'+<b>\"]"
        )
    return keys


def _render_all(
    signature: inspect.Signature, templates: tuple[Template, ...], args: Args, kwargs: Kwargs
) -> tuple[str, ...]:
    arguments = _arguments(signature, args, kwargs)
    return tuple(template.render(arguments) for template in templates)


def _arguments(signature: inspect.Signature, args: Args, kwargs: Kwargs) -> dict[str, object]:
    """The call's arguments by name, those in `**kwargs` included. A wrong call is a TypeError, as ever."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = arguments.pop(parameter.name)
            arguments = {**extra, **arguments}
    return arguments


def _call_key(key: Callable[..., object], args: Args, kwargs: Kwargs) -> tuple[str, ...]:
    result = key(*args, **kwargs)
    names = result if isinstance(result, list | tuple) else (result,)
    return _own_names(names, key, "return a str, or a list of them")


def _call_keys(keys: Callable[..., object], args: Args, kwargs: Kwargs) -> tuple[str, ...]:
    result = keys(*args, **kwargs)
    if isinstance(result, str) or not isinstance(result, Iterable):
        raise LockKeyError(
            f"the callable keys {dotted_path(keys)} returned {result!r}; return a list of names"
        )
    advice = (
        "add one that is always there, such as that of the collection itself, which then can't change under"
        " the lock either"
    )
    return _own_names(result, keys, advice)


def _own_names(found: Iterable[object], key: Callable[..., object], advice: str) -> tuple[str, ...]:
    names = tuple(_own_name(name, key) for name in found)
    if not names:
        raise LockKeyError(f"the callable key {dotted_path(key)} returned no name; {advice}")
    return names


def _own_name(name: object, key: Callable[..., object]) -> str:
    """A name that a callable built is used as it is, where it can be one."""
    if inspect.iscoroutine(name):
        name.close()
    if not isinstance(name, str) or not name:
        raise LockKeyError(
            f"the callable key {dotted_path(key)} returned {name!r}; return a str that isn't empty, or a list"
        )
    if not balanced(name):
        raise LockKeyError(
            f"the callable key {dotted_path(key)} returned {name!r}, whose braces aren't balanced"
        )
    return name if len(name) <= MAX_NAME else shorten(name)  # hashed, it would not be `get_lock`'s


def _default_key(signature: inspect.Signature, path: str, args: Args, kwargs: Kwargs) -> tuple[str, ...]:
    pairs = _named_values(signature, args, kwargs)
    return (shorten(":".join([path, *(_default_pair(path, name, value) for name, value in pairs)])),)


def _named_values(signature: inspect.Signature, args: Args, kwargs: Kwargs) -> list[tuple[str, object]]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    pairs: list[tuple[str, object]] = []
    for position, (name, value) in enumerate(bound.arguments.items()):
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            pairs += [(str(index), item) for index, item in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            pairs += sorted(value.items())
        elif position > 0 or name not in ("self", "cls"):
            pairs.append((name, value))
    return [(name, value) for name, value in pairs if not is_request(value)]


def _default_pair(path: str, name: str, value: object) -> str:
    try:
        text = "" if says_nothing(value) else as_text(value)
        if not text:
            raise LockKeyError("it is None or empty: unrelated callers would share one lock")
    except LockKeyError as error:
        raise LockKeyError(f"argument {name!r} of {path}: {error}; or say what to lock with key=…") from error
    return f"{encode(name, DEFAULT_UNSAFE)}={encode(text, DEFAULT_UNSAFE)}"


def is_request(value: object) -> bool:
    """Whether this is Django's request, or one that wraps it (as Django REST framework's does)."""
    return isinstance(value, HttpRequest) or isinstance(getattr(value, "_request", None), HttpRequest)
