"""From a call to the names of its locks: by a key, by several, by a callable, or by the arguments alone.

Two styles of a key mean the same; an error has the whole key to paste:

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

import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final
from uuid import UUID

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model
from django.http import HttpRequest

from locking.exceptions import LockKeyError
from locking.keys.names import MAX_NAME, MAX_TEMPLATE, balanced

KeySource = str | Sequence[str] | Callable[..., str | Iterable[str]]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
KeyBuilder = Callable[[Args, Kwargs], tuple[str, ...]]

FORMAT_STYLE: Final = re.compile(r"""[^'"<>]*(?<![$#%]){[^'"<>]*""")
"""`order:{order_id}`: braces and neither quotes nor angle brackets. `${id}` and `#{id}` are of others."""
PATH: Final = r"\s*(?P<path>[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)*)\s*"
FORMAT_TERM: Final = re.compile(
    rf"(?P<text>[^{{}}]+)"
    rf"|(?P<value>{{{PATH}(?:\|\s*(?P<default>[^:{{}}]*?)\s*)?(?::\s*(?P<converter>[^{{}}]*?)\s*)?}})"
)
QUOTED_TERM: Final = re.compile(
    rf"""\s*(?:(?P<text>'[^']*'|"[^"]*")|(?P<value><\s*(?:(?P<converter>\w+)\s*:)?{PATH}"""
    r"""(?:\|\s*(?P<default>'[^']*'|"[^"]*"|[^<>'"]*?)\s*)?>))\s*"""
)
FOREIGN: Final = r"[#$%]?{\s*([\w.]+)\s*}|<\s*#?([\w.]+)\s*>|[#$]([^\W\d][\w.]*)|%\((\w+)\)s"
"""How others write a value: SpEL, a shell, an f-string, printf. Compiled when a key is wrong."""

MAX_LENGTH: Final = 200
HASH_MARK: Final = "%~"  # a percent sign is otherwise always followed by two hexadecimal digits
HASH_DIGITS: Final = 32
ALWAYS_ENCODED: Final = r"\s:%{}\x00-\x1f\x7f-\x9f\ud800-\udfff"
DEFAULT_UNSAFE: Final = re.compile(f"[{ALWAYS_ENCODED}=]")
TEXT_UNSAFE: Final = re.compile(r"[%\ud800-\udfff]")


# --- from a call to names ---------------------------------------------------------------------------------


def key_builder(function: Callable[..., object], key: KeySource | None = None) -> KeyBuilder:
    """Return the function that turns a call's `(args, kwargs)` into the names of its locks.

    Templates are checked against the function's signature here and now. Without a key, the name is the
    function's dotted path and its arguments.

    Example:
        >>> def pay(order_id): ...
        >>> key_builder(pay, "order:{order_id}")((42,), {})
        ('order:42',)
    """
    if callable(key):
        return partial(_call, key)
    # What `method_decorator` hands over pretends to be unbound; else the signature is what callers see.
    signature = inspect.signature(function, follow_wrapped=not isinstance(function, partial))
    if key is None:
        return partial(_name_by_arguments, signature, dotted_path(function))
    templates, parameters = templates_of(key), signature.parameters
    for template in templates:
        template.check(signature, getattr(function, "__name__", repr(function)))
    by_place = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values())

    def build(args: Args, kwargs: Kwargs) -> tuple[str, ...]:
        if by_place and not kwargs and len(args) == len(parameters):  # as most calls are; binding costs 5 µs
            arguments: dict[str, object] = dict(zip(parameters, args, strict=True))
        else:
            arguments = {}
            for name, value in _bind(signature, args, kwargs):
                arguments.setdefault(name, value)  # a parameter goes before one of `**kwargs`
        if len(templates) == 1:
            return (templates[0].render(arguments),)
        return tuple(template.render(arguments) for template in templates)

    return build


def templates_of(key: KeySource | None) -> tuple[Template, ...]:
    """Return the templates of a `key` option, none where it is a callable or left out."""
    if key is None or callable(key):
        return ()
    sources = (key,) if isinstance(key, str) else key
    if not isinstance(sources, list | tuple) or not sources:
        raise LockKeyError(
            f'key={key!r} is no key: write key="order:{{id}}", or several: key=["from:{{a}}", "to:{{b}}"]'
        )
    return tuple(map(compile_template, sources))


def label_of(function: Callable[..., object], key: KeySource | None) -> str:
    """Return what the names of all calls have in common: the readable key, or the function's path."""
    if templates := templates_of(key):
        return ", ".join(template.readable for template in templates)[:MAX_TEMPLATE]
    return dotted_path(function)[-MAX_TEMPLATE:]


def dotted_path(function: Callable[..., object]) -> str:
    """Return the module and qualified name of a function, or of a callable's class."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def is_request(value: object) -> bool:
    """Whether this is Django's request, or one that wraps it (as Django REST framework's does)."""
    return isinstance(value, HttpRequest) or isinstance(getattr(value, "_request", None), HttpRequest)


def _bind(signature: inspect.Signature, args: Args, kwargs: Kwargs) -> list[tuple[str, object]]:
    """Return the call's arguments by name, those of `*args` and `**kwargs` each by its own."""
    # A call that the function itself would refuse is a TypeError, as ever.
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    pairs: list[tuple[str, object]] = []
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            pairs += [(str(index), item) for index, item in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            pairs += sorted(value.items())
        else:
            pairs.append((name, value))
    return pairs


def _call(key: Callable[..., object], args: Args, kwargs: Kwargs) -> tuple[str, ...]:
    """Return the names that a callable key gives, as they are where they can be names."""
    found = key(*args, **kwargs)
    returned = f"the callable key {dotted_path(key)} returned"
    if inspect.iscoroutine(found):
        found.close()
    names = tuple(found) if isinstance(found, Iterable) and not isinstance(found, str) else (found,)
    if not names:
        raise LockKeyError(
            f"{returned} no name; add one that is always there, such as that of the collection itself, which"
            " then can't change under the lock either"
        )
    for name in names:
        if not isinstance(name, str) or not name:
            raise LockKeyError(f"{returned} {name!r}; return a str that isn't empty, or a list of them")
        if not balanced(name):
            raise LockKeyError(f"{returned} {name!r}, whose braces aren't balanced")
    # Hashed where it has to be: one that `get_lock` takes as it is must be the same lock.
    return tuple(name if len(name) <= MAX_NAME else shorten(name) for name in map(str, names))


def _name_by_arguments(
    signature: inspect.Signature, path: str, args: Args, kwargs: Kwargs
) -> tuple[str, ...]:
    """Return the function's path and `name=value` of each argument; not of `self` nor of a request."""
    pieces = [path]
    owner = next(iter(signature.parameters), "") in ("self", "cls")
    for name, value in _bind(signature, args, kwargs)[owner:]:
        if is_request(value):
            continue
        try:
            text = as_text(value)
            if not text:
                raise LockKeyError("it is None or empty: unrelated callers would share one lock")
        except LockKeyError as error:
            advice = "; or say what to lock with key=…"
            raise LockKeyError(f"argument {name!r} of {path}: {error}{advice}") from error
        pieces.append(f"{encode(name, DEFAULT_UNSAFE)}={encode(text, DEFAULT_UNSAFE)}")
    return (shorten(":".join(pieces)),)


# --- a key ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """A piece of a key that is read from the arguments of the call."""

    name: str
    attributes: tuple[str, ...]
    converter: str | None
    default: str | None
    written: str  # with its brackets
    span: tuple[int, int]  # of the name and its attributes, in the key


@dataclass(frozen=True, slots=True)
class Template:
    """A key that was read and found sound. Make one with `compile_template`."""

    source: str
    terms: tuple[str | Value, ...]  # the texts as they stand in a name
    unsafe: re.Pattern[str]  # what values must not hold

    @property
    def values(self) -> list[Value]:
        """The pieces that come from the call, in order."""
        return [term for term in self.terms if isinstance(term, Value)]

    @property
    def readable(self) -> str:
        """The key as a person reads it: `order:<order.pk>` in either style."""
        terms = self.terms
        return "".join(x if isinstance(x, str) else f"<{'.'.join((x.name, *x.attributes))}>" for x in terms)

    def render(self, arguments: Mapping[str, object]) -> str:
        """Return the name of the lock, at most 200 characters: a longer one ends in a hash of the whole."""
        texts = [
            term if isinstance(term, str) else encode(self._text(term, arguments), self.unsafe)
            for term in self.terms
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
                    text = f"{value.written}: {type(found).__name__} has no {attribute!r}"
                    raise LockKeyError(text + self.advice(value, dir(found), attribute)) from error
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
        end, default = value.span[1], "|'none'" if value.written[0] == "<" else "|none"
        raise LockKeyError(
            f"{value.written} is {what}: unrelated callers would share one lock; pass a value, or give a"
            f' default if they should: "{self.source[:end]}{default}{self.source[end:]}"'
        )

    def advice(self, value: Value, known: Iterable[str], word: str = "") -> str:
        """Return the whole key with what was probably meant by `word` or the parameter's name, or nothing."""
        word = word or value.name
        if (guess := _nearest(word, known)) is None:
            return ""
        (begin, end), source = value.span, self.source
        return f'; did you mean "{source[:begin]}{source[begin:end].replace(word, guess)}{source[end:]}"?'

    def check(self, signature: inspect.Signature, function_name: str) -> None:
        """Refuse a name that isn't a parameter; with `**kwargs` any name may come at the call."""
        parameters = signature.parameters
        for match in re.finditer(r"\{(\w+)[^{}]*\}", self.source):
            if not self.values and match[1] in parameters:  # it would be one lock for all
                reason = f"quoted text isn't formatted{_repaired(self.source)}"
                raise _error(self.source, match.start(), reason)
        for value in self.values:
            parameter = parameters.get(value.name)
            if parameter is None and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
                known = ", ".join(parameters) or "none at all"
                reason = f"{value.name!r} is not a parameter of {function_name} (it has {known})"
                advice = self.advice(value, parameters)
                raise _error(self.source, value.span[0], reason + advice)
            if parameter and parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                reason = f"{value.name!r} has several arguments: name one parameter, or give a callable key"
                raise _error(self.source, value.span[0], reason)


def compile_template(source: str) -> Template:
    """Read a key, once: the same source gives the same object. LockKeyError points at a mistake, and says the
    fix.

    Example:
        >>> compile_template("order:{id}").render({"id": 42})
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
    terms = _read(source)
    if not balanced("".join(term if isinstance(term, str) else "x" for term in terms)):
        # A cluster finds a key's slot by its braces, and Redisson derives names from them.
        column = next((i for i, char in enumerate(source) if char in "{}"), 0)
        raise _Mistake(column, "the braces of a key must be balanced and hold something")
    if terms == [""]:
        raise _Mistake(0, "the key is empty: unrelated callers would share one lock")
    marks = "".join(map(_separating_mark, terms, terms[1:], [*terms[2:], ""]))
    pieces = tuple(encode(term, TEXT_UNSAFE) if isinstance(term, str) else term for term in terms)
    return Template(source, pieces, re.compile(f"[{ALWAYS_ENCODED}{re.escape(marks)}]"))


def _read(source: str) -> list[str | Value]:
    """Read a key in either style, term by term; the first mistake is raised."""
    quoted = FORMAT_STYLE.fullmatch(source) is None
    terms: list[str | Value] = []
    at = 0
    while True:
        if (match := (QUOTED_TERM if quoted else FORMAT_TERM).match(source, at)) is None:
            raise _mistake(source, at, quoted=quoted)
        if match["value"]:
            terms.append(_value(match))
        else:
            text = match["text"][1:-1] if quoted else match["text"]
            if terms and isinstance(terms[-1], str):
                terms[-1] += text
            else:
                terms.append(text)
        at = match.end()
        if at == len(source):
            return terms
        if quoted and source[at] != "+":
            raise _Mistake(at, "a '+' is missing before this")
        at += quoted


def _separating_mark(before: str | Value, term: str | Value, after: str | Value) -> str:
    """Return what values must not hold because this text keeps two of them apart."""
    if isinstance(before, Value) and isinstance(term, Value):
        reason = "two values are adjacent: '1' and '23' would read as '12' and '3'; put ':' between"
        raise _Mistake(term.span[0], reason)
    if isinstance(before, str) or isinstance(term, Value) or isinstance(after, str):
        return ""
    if mark := re.search(r"[\s:{}]", term) or re.search(r"[^%0-9A-Za-z]", term):
        return mark[0]
    reason = f"{term!r} can't keep the values before and after it apart; use a text with ':'"
    raise _Mistake(after.span[0], reason)


def _mistake(source: str, at: int, *, quoted: bool) -> _Mistake:
    """Return why no term begins here."""
    rest = source[at:].lstrip()
    column = len(source) - len(rest)
    if found := re.match("<[^<>]*>" if quoted else "{[^{}]*}", rest):
        reason = "a value is a parameter and its .attributes; what calls or indexes belongs in a callable key"
        if "!" in found[0]:
            reason = "there are no conversions in format specs of a key; write the parameter's name alone"
        return _Mistake(column + 1, reason)
    if not quoted:
        reason = "this brace has no partner; literal braces need the quoted style: 'text'+<parameter>"
    elif rest.startswith("<"):
        reason = "this '<' is never closed"
    else:
        reason = "a term is expected here: 'text' or <parameter>"
    return _Mistake(column, reason)


def _value(match: re.Match[str]) -> Value:
    column = match.start("value") + 1
    name, *attributes = re.findall(r"\w+", match["path"])
    if any(part.startswith("_") for part in (name, *attributes)):
        raise _Mistake(column, "a name with a leading underscore is private, and not read")
    converter, default = match["converter"] or None, match["default"]
    if converter not in CONVERTERS:
        guess = _nearest(str(converter), filter(None, CONVERTERS))
        advice = f"; did you mean {guess}?" if guess else ""
        raise _Mistake(column, f"{converter!r} is not a converter (str, int, uuid or slug){advice}")
    if default and default[0] in "'\"":
        default = default[1:-1]
    if default == "":
        raise _Mistake(column, "an empty default would be one lock for unrelated callers; write 'none'")
    return Value(name, tuple(attributes), converter, default, match["value"], match.span("path"))


def _repaired(source: str) -> str:
    """Return the key that was probably meant, as advice to paste; nothing where that is none either."""
    if re.fullmatch(r"[\w:.-]+", source):  # as a lone text it would be one lock for all
        return f"""; without a value all calls share one lock: write "'{source}'" if you mean that"""
    values = re.sub(FOREIGN, lambda match: f"{{{match[match.lastindex or 0]}}}", source)
    meant = re.sub(r"""^f(?=['"])|['"]|\s*\+\s*""", "", values)
    try:
        return f'; write "{meant}"' if meant != source and _compile(meant) else ""
    except _Mistake:
        return ""


def _error(source: str, column: int, reason: str) -> LockKeyError:
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", source)
    return LockKeyError(f"key template, column {column + 1}: {reason}\n    {shown}\n    {' ' * column}^")


def _nearest(word: str, known: Iterable[str]) -> str | None:
    found = get_close_matches(word, [name for name in known if not name.startswith("_")], n=1)
    return found[0] if found else None


# --- a value ----------------------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """Return a value as text, None as an empty one; what could mean two things, or change, is refused."""
    convert = KINDS.get(type(value))  # nearly always there
    if convert is None:
        if isinstance(value, type(None)):  # or a lazy object standing for None, as `request.user` may
            return ""
        if isinstance(value, Enum):
            return as_text(value.value)
        if isinstance(value, Model) and value.pk is not None and not value._state.adding:
            return as_text(value.pk)
        # By its real type: a lazy object only pretends.
        convert = next((KINDS[kind] for kind in type(value).__mro__ if kind in KINDS), None)
        if convert is None or isinstance(value, bool):
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
    if isinstance(value, bool):
        return f"{value!r} is a bool, which does not identify a resource; pass its id"
    if isinstance(value, Model):
        return f"an unsaved {kind} has no identity yet; save it first"
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
