"""Which decorated functions a request to a view can reach, without calling anything.

Followed are what decorators wrap, closures, the methods of class-based views and of objects as views, the
operations of Django Ninja and what a ModelAdmin has: by the attributes that they have, so none of these
packages is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

ATTRIBUTES: Final = ("__wrapped__", "view_class", "cls", "model_admin")
"""Where a function keeps what it wraps, and a view its class: Django's, REST framework's, the admin's."""

CALLABLES: Final = (FunctionType, MethodType, partial)


def locked_functions(view: object) -> list[Callable[..., Any]]:
    """Return the functions with `lock_options` that a request to `view` can reach, itself included."""
    found: list[Callable[..., Any]] = []
    seen: dict[int, object] = {}
    waiting = [view]
    while waiting:
        thing = waiting.pop(0)
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, CALLABLES) and hasattr(thing, "lock_options"):
            found.append(thing)
        waiting += _parts(thing)
    return found


def is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two callables are one function under their decorators."""
    return inspect.unwrap(one) is inspect.unwrap(other)


def _parts(thing: Any) -> Iterator[object]:
    if isinstance(thing, partial):
        yield thing.func
    elif isinstance(thing, MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, FunctionType):
        yield from (getattr(thing, name, None) for name in ATTRIBUTES)
        yield from _enclosed_by(thing)
        if thing.__name__ == "changelist_view" and hasattr(thing, "model_admin"):
            yield from _actions_of(thing.model_admin)
    elif isinstance(thing, type):
        yield from _methods_of(thing)
    elif isinstance(operations := getattr(thing, "operations", None), list):  # of Django Ninja
        yield from (getattr(operation, "view_func", None) for operation in operations)
    elif hasattr(thing, "admin_site"):  # a ModelAdmin
        yield from (
            method for method in _methods_of(type(thing)) if method.__name__ not in (thing.actions or ())
        )
    elif callable(thing):  # an object as a view, such as a feed of Django's
        yield type(thing)


def _actions_of(model_admin: Any) -> Iterator[object]:
    """Yield what only the list's view calls."""
    for action in model_admin.actions or ():
        yield getattr(type(model_admin), action, None) if isinstance(action, str) else action
    yield from (action for _, action in model_admin.admin_site.actions)


def _enclosed_by(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            continue
        if isinstance(content, CALLABLES) or hasattr(content, "operations"):
            yield content


def _methods_of(kind: type) -> Iterator[FunctionType]:
    for name in dir(kind):
        if isinstance(method := getattr(kind, name, None), FunctionType):
            yield method
