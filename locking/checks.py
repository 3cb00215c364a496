"""System checks: mistakes in settings and in decorators, reported before the first request.

They open no connection; those of `locking.live_checks` do. The page *System checks* of the documentation
explains every id.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.urls import URLResolver, get_resolver

from locking.conf import DEFAULTS, LONGEST_COUNTDOWN, read_alias
from locking.core.handler import DEFAULT_ALIAS, InvalidLockBackend, locks
from locking.keys.names import check_ttl
from locking.keys.template import dotted_path, templates_of
from locking.liveness import base_directory
from locking.transactions.decorator import DECORATED, Options
from locking.utils.databases import VENDORS

SNAPSHOTS: Final = "repeatable read"

UNUSABLE: Final = (ImproperlyConfigured, InvalidLockBackend)
"""What an alias raises whose backend can't be made, or that isn't there."""

HINTS: Final = {
    "locking.E001": f"Each alias takes {', '.join(DEFAULTS)}.",
    "locking.E002": "Add the alias to LOCKING, or name one that it has.",
    "locking.E003": "Give seconds above 0, or None: a TTL of 10 s kept alive by the watchdog.",
    "locking.E004": "Correct this entry of LOCKING, or install the package that the backend needs.",
    "locking.E005": "Correct using=, or add the database.",
    "locking.E006": "Put @method_decorator(distributed_lock(…), name='dispatch') on the class, or take the"
    " view out of ATOMIC_REQUESTS with Django's transaction.non_atomic_requests.",
    "locking.E007": "Name the database too: @distributed_lock(…, using=[…]).",
    "locking.E008": "Leave fenced out, or use a backend that mints tokens and PostgreSQL, MariaDB, MySQL or"
    " SQLite.",
    "locking.E010": "Name an absolute path, or None to leave it out.",
    "locking.E011": "Decorate changeform_view or delete_view instead.",
    "locking.E012": "Write the name as the URLconf has it, or give a default.",
    "locking.W001": "Use it in tests; in production take a backend that all processes share, such as Redis.",
    "locking.W002": "A row lock protects nothing there: use fenced=True or a conditional UPDATE, or"
    " PostgreSQL.",
    "locking.W003": "Set OPTIONS['isolation_level'] to 'read committed' (Django's default), unless the"
    " server is MariaDB with innodb_snapshot_isolation=ON: any other refuses the call.",
    "locking.W006": f"Give it more than {LONGEST_COUNTDOWN:g} s, and more than the longest task takes.",
}


def _message(number: str, text: str) -> CheckMessage:
    kind = Error if number.startswith("E") else Warning
    ended = text if text.endswith((".", "?")) else f"{text}."
    return kind(ended, hint=HINTS[f"locking.{number}"], id=f"locking.{number}")


# --- the setting ------------------------------------------------------------------------------------------


@register("locking", "locking_live")
def check_setting(**_: Any) -> list[CheckMessage]:
    """Check `LOCKING`, each alias by itself."""
    try:
        setting = locks.settings
    except ImproperlyConfigured as error:
        return [_message("E001", str(error))]
    if DEFAULT_ALIAS not in setting:
        return [_message("E002", f"LOCKING has no alias 'default', only {', '.join(map(repr, setting))}.")]
    return [message for alias in locks for message in _check_alias(alias, locks.settings[alias])]


@register("locking")
def check_runtime_directory(**_: Any) -> list[CheckMessage]:
    """Check `LOCKING_RUNTIME_DIR`, where processes show that they are alive."""
    try:
        base_directory()
    except ImproperlyConfigured as error:
        return [_message("E010", f"{error}.")]
    return []


def _check_alias(alias: str, raw: Any) -> Iterator[CheckMessage]:
    """Tell the first thing that is wrong with an alias, or else what its backend has to say."""
    given = raw if isinstance(raw, Mapping) else {}
    try:
        for key in ("TTL", "WATCHDOG_TTL"):
            if given.get(key) is not None:
                check_ttl(given[key], source=key)
    except ValueError as error:
        yield _message("E003", f"LOCKING[{alias!r}]: {error}.")
        return
    try:
        read_alias(alias, raw)
    except ImproperlyConfigured as error:
        yield _message("E001", str(error))
        return
    try:
        backend = locks[alias]
    except UNUSABLE as error:
        yield _message("E004", f"The backend can't be made: {error}")
        return
    if not backend.shared_between_processes and not settings.DEBUG and not _under_test():
        name = backend.settings.backend
        yield _message("W001", f"LOCKING[{alias!r}] uses {name}, whose locks hold within one process only.")
    yield from backend.check()


def _under_test() -> bool:
    """Whether Django's test environment is set up, as its test runner and pytest-django do first."""
    return hasattr(getattr(sys.modules.get("django.test.utils"), "_TestState", None), "saved_data")


# --- decorated functions ----------------------------------------------------------------------------------


def _decorated() -> list[Any]:
    """What was decorated, the views too: checks run in no certain order, the first must load them."""
    _views()
    return list(DECORATED)


def _views() -> list[tuple[Any, set[str]]]:
    """Return the project's views as far as it has a URLconf, each with the names of its route's arguments."""
    return list(_routes(get_resolver())) if getattr(settings, "ROOT_URLCONF", None) else []


def _routes(resolver: URLResolver, names: Iterable[str] = ()) -> Iterator[tuple[Any, set[str]]]:
    for pattern in resolver.url_patterns:
        known = {*names, *pattern.pattern.regex.groupindex}
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern, known | {*pattern.default_kwargs})
        else:
            yield pattern.callback, known | {*pattern.default_args}


def _sorted(messages: Iterable[CheckMessage]) -> list[CheckMessage]:
    return sorted(messages, key=lambda message: message.msg)


@register("locking")
def check_decorated(**_: Any) -> list[CheckMessage]:
    """Check the aliases of `LOCKING` and `DATABASES` that decorators name, and that tokens can be checked.

    Where it can't, each call of a fenced function is refused.
    """
    return _sorted(m for each in _decorated() for m in (*_check_options(each), *_check_fence(each)))


def _check_options(function: Any) -> Iterator[CheckMessage]:
    options: Options = function.lock_options
    path = dotted_path(function)
    with suppress(ImproperlyConfigured):  # LOCKING can't be read: E001 says why
        if options.backend not in locks:
            yield _message("E002", f"{path} is locked on {options.backend!r}, which LOCKING doesn't have.")
    for alias in sorted(_using(options)):
        if alias not in connections.settings:
            yield _message("E005", f"{path} commits on the database {alias!r}, which DATABASES doesn't have.")


@register("locking")
def check_keys(**_: Any) -> list[CheckMessage]:
    """Compare the keys of locked classes with their routes: a `dispatch` takes any argument by any name."""
    return _sorted(message for view, names in _views() for message in _check_key(view, names))


def _check_key(view: Any, names: set[str]) -> Iterator[CheckMessage]:
    options: Options | None = getattr(view, "lock_options", None)
    kind = _class_of(view)
    if options is None or kind is None:
        return  # a function's own parameters were looked at when it was decorated
    for template in templates_of(options.key):
        for value in template.values:
            if value.name not in names | {"request", "self"} and value.default is None:
                text = f"{dotted_path(kind)} is locked by {template.source!r}, but a route to it has no "
                known = ", ".join(sorted(names)) or "none"
                text += f"argument {value.name!r}; it has {known}{template.advice(value, names)}"
                yield _message("E012", text)


def _check_fence(function: Any) -> Iterator[CheckMessage]:
    options: Options = function.lock_options
    if not options.fenced:
        return
    path = dotted_path(function)
    with suppress(*UNUSABLE):  # E002 or E004 says why
        if not locks[options.backend].supports_fencing:
            yield _message("E008", f"{path} is fenced, but the backend {options.backend!r} mints no tokens.")
    for alias in sorted(_using(options) & set(connections.settings)):
        vendor = connections[alias].vendor
        # MySQL's own default is what it is left to by None.
        level = connections[alias].settings_dict["OPTIONS"].get("isolation_level", "read committed")
        if vendor not in VENDORS:
            yield _message("E008", f"{path} is fenced, but the database {alias!r} can't check a token.")
        elif vendor == "mysql" and (level or SNAPSHOTS).replace("-", " ").lower() == SNAPSHOTS:
            yield _message("W003", f"{path} is fenced, but the database {alias!r} runs at REPEATABLE READ.")


@register("locking")
def check_row_locks(**_: Any) -> list[CheckMessage]:
    """Find databases of locked functions that take `select_for_update()` and do nothing."""
    if settings.DEBUG:
        return []
    used = {alias for function in _decorated() for alias in _using(function.lock_options)}
    text = "Locked functions commit on {!r}, which is SQLite: it ignores select_for_update() silently."
    return [
        _message("W002", text.format(alias))
        for alias in sorted(used & set(connections.settings))
        if connections[alias].vendor == "sqlite"
    ]


def _using(options: Options) -> set[str]:
    return {options.using} if isinstance(options.using, str) else set(options.using)


# --- ATOMIC_REQUESTS --------------------------------------------------------------------------------------


@register("locking")
def check_atomic_requests(**_: Any) -> list[CheckMessage]:
    """Find decorated views that are called in a transaction of Django's: each of their calls is refused."""
    atomic = {alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"]}
    messages = [m for view, _ in _views() for m in (*_check_view(view, atomic), *_check_admin(view))]
    return list({(message.id, message.msg): message for message in messages}.values())


def _check_view(view: Callable[..., Any], atomic: set[str]) -> Iterator[CheckMessage]:
    wrapped = atomic - getattr(view, "_non_atomic_requests", set())
    if not wrapped:
        return
    on = ", ".join(map(repr, sorted(wrapped)))
    text = f"{{}} is locked, but ATOMIC_REQUESTS commits {on} after the release"
    if _ends_early(view):
        yield _message("E007", text.format(dotted_path(view)))
        return
    kind = _class_of(view)
    methods: Iterator[Any] = (getattr(kind, name, None) for name in dir(kind))
    for method in methods:
        if _ends_early(method):
            yield _message("E006", text.format(dotted_path(method)))


IN_ADMIN: Final = ("save_form", "save_formset", "save_model", "save_related", "delete_model")
"""Methods of a ModelAdmin that the admin calls inside a transaction, whatever ATOMIC_REQUESTS says."""


def _check_admin(view: Callable[..., Any]) -> Iterator[CheckMessage]:
    model_admin = getattr(view, "model_admin", None)
    for name in IN_ADMIN:
        method: Any = getattr(type(model_admin), name, None)
        if _ends_early(method):
            text = f"{dotted_path(method)} is locked, but the admin calls it inside a transaction of its own."
            yield _message("E011", text)


def _class_of(view: Any) -> Any:
    """Return the class of a view, Django's or of Django REST framework, or None."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def _ends_early(function: Any) -> bool:
    options: Options | None = getattr(function, "lock_options", None)
    if options is None:
        return False
    try:
        return options.open_transaction_policy() == "refuse"
    except UNUSABLE:
        return True  # the alias can't be used: another check says why


# --- Celery -----------------------------------------------------------------------------------------------


@register("locking")
def check_celery(**_: Any) -> list[CheckMessage]:
    """Find a broker that would deliver a locked task again while it waits in a worker to be retried."""
    celery: Any = sys.modules.get("celery")
    if celery is None:
        return []
    app = celery.current_app
    timeout = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    if timeout is None or timeout > LONGEST_COUNTDOWN:
        return []
    text = f"{{}} is retried while its lock is taken, but the broker's visibility_timeout is {timeout:g} s."
    locked = [task for task in app.tasks.values() if hasattr(task.run, "lock_options")]
    return _sorted(_message("W006", text.format(dotted_path(task.run))) for task in locked)
