"""From a call to the names of its locks: by a key, by several, by a callable, or by the arguments alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from django.http import HttpRequest

from locking.exceptions import LockKeyError
from locking.keys.names import MAX_NAME, MAX_TEMPLATE, balanced
from locking.keys.template import Template, compile_template
from locking.keys.values import DEFAULT_UNSAFE, as_text, encode, shorten

KeySource = str | Sequence[str] | Callable[..., str | Iterable[str]]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
KeyBuilder = Callable[[Args, Kwargs], tuple[str, ...]]


def key_builder(function: Callable[..., object], key: KeySource | None = None) -> KeyBuilder:
    """Return the function that turns a call's `(args, kwargs)` into the names of its locks.

    Args:
        function: what is decorated; keys are checked against its signature here and now.
        key: a template, a list of them, or a callable that gets the call's arguments and returns a name or
            several. Without it, the name is the function's dotted path and its arguments.

    Raises:
        LockKeyError: a template isn't one, or it names what isn't a parameter.

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
    templates = templates_of(key)
    for template in templates:
        template.check(signature, getattr(function, "__name__", repr(function)))
    parameters = signature.parameters
    by_place = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values())
    return partial(_render, signature, tuple(parameters) if by_place else (), templates)


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
    templates = templates_of(key)
    if not templates:
        return dotted_path(function)[-MAX_TEMPLATE:]
    return ", ".join(template.readable for template in templates)[:MAX_TEMPLATE]


def dotted_path(function: Callable[..., object]) -> str:
    """Return the module and qualified name of a function, or of a callable's class."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def is_request(value: object) -> bool:
    """Whether this is Django's request, or one that wraps it (as Django REST framework's does)."""
    return isinstance(value, HttpRequest) or isinstance(getattr(value, "_request", None), HttpRequest)


def _render(
    signature: inspect.Signature,
    plain: tuple[str, ...],
    templates: tuple[Template, ...],
    args: Args,
    kwargs: Kwargs,
) -> tuple[str, ...]:
    if not kwargs and plain and len(args) == len(plain):  # as most calls are; binding costs 5 µs
        arguments = dict(zip(plain, args, strict=True))
    else:
        arguments = {}
        for name, value in _bind(signature, args, kwargs):
            arguments.setdefault(name, value)  # a parameter goes before one of `**kwargs`
    if len(templates) == 1:
        return (templates[0].render(arguments),)
    return tuple(template.render(arguments) for template in templates)


def _bind(signature: inspect.Signature, args: Args, kwargs: Kwargs) -> list[tuple[str, object]]:
    """Return the call's arguments by name, those of `*args` and `**kwargs` each by its own.

    A call that the function itself would refuse is a TypeError, as ever.
    """
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
    several = isinstance(found, Iterable) and not isinstance(found, str)
    names: tuple[object, ...] = tuple(found) if several else (found,)  # type: ignore[arg-type]
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
    pairs = _bind(signature, args, kwargs)
    owner = next(iter(signature.parameters), "") in ("self", "cls")
    for name, value in pairs[owner:]:
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
