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
    "E001": f"Each alias takes {', '.join(DEFAULTS)}.",
    "E002": "Add the alias to LOCKING, or name one that it has.",
    "E003": "Give seconds above 0, or None: a TTL of 10 s kept alive by the watchdog.",
    "E004": "Correct this entry of LOCKING, or install the package that the backend needs.",
    "E005": "Correct using=, or add the database.",
    "E006": "Put @method_decorator(distributed_lock(…), name='dispatch') on the class, or take the"
    " view out of ATOMIC_REQUESTS with Django's transaction.non_atomic_requests.",
    "E007": "Name the database too: @distributed_lock(…, using=[…]).",
    "E008": "Leave fenced out, or use a backend that mints tokens and PostgreSQL, MariaDB, MySQL or SQLite.",
    "E010": "Name an absolute path, or None to leave it out.",
    "E011": "Decorate changeform_view or delete_view instead.",
    "E012": "Write the name as the URLconf has it, or give a default.",
    "W001": "Use it in tests; in production take a backend that all processes share, such as Redis.",
    "W002": "A row lock protects nothing there: use fenced=True or a conditional UPDATE, or PostgreSQL.",
    "W003": "Set OPTIONS['isolation_level'] to 'read committed' (Django's default), unless the"
    " server is MariaDB with innodb_snapshot_isolation=ON: any other refuses the call.",
    "W006": f"Give it more than {LONGEST_COUNTDOWN:g} s, and more than the longest task takes.",
}


def checked(look: Callable[[], Iterable[CheckMessage]]) -> Callable[..., list[CheckMessage]]:
    """Register a check, which reports each message once, in their order."""

    @register("locking")
    def check(**_: Any) -> list[CheckMessage]:
        return sorted({(each.id, each.msg): each for each in look()}.values(), key=lambda each: each.msg)

    return check


def _message(number: str, text: str) -> CheckMessage:
    kind = Error if number.startswith("E") else Warning
    return kind(text if text.endswith((".", "?")) else f"{text}.", hint=HINTS[number], id=f"locking.{number}")


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


@checked
def check_runtime_directory() -> Iterator[CheckMessage]:
    """Check `LOCKING_RUNTIME_DIR`, where processes show that they are alive."""
    try:
        base_directory()
    except ImproperlyConfigured as error:
        yield _message("E010", f"{error}.")


def _check_alias(alias: str, raw: Any) -> Iterator[CheckMessage]:
    """Tell the first thing that is wrong with an alias, or else what its backend has to say."""
    given = raw if isinstance(raw, Mapping) else {}
    try:
        for key in ("TTL", "WATCHDOG_TTL"):
            if given.get(key) is not None:
                check_ttl(given[key], source=key)
        read_alias(alias, raw)
    except ValueError as error:
        yield _message("E003", f"LOCKING[{alias!r}]: {error}.")
        return
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


@checked
def check_decorated() -> Iterable[CheckMessage]:
    """Check the aliases of `LOCKING` and `DATABASES` that decorators name, and that tokens can be checked."""
    return (message for function in _decorated() for message in _check_decorated(function))


def _check_decorated(function: Any) -> Iterator[CheckMessage]:
    options: Options = function.lock_options
    path = dotted_path(function)
    with suppress(*UNUSABLE):  # E001 or E004 says why
        if options.backend not in locks:
            yield _message("E002", f"{path} is locked on {options.backend!r}, which LOCKING doesn't have.")
        elif options.fenced and not locks[options.backend].supports_fencing:
            yield _message("E008", f"{path} is fenced, but the backend {options.backend!r} mints no tokens.")
    for alias in sorted(_using(options)):
        if alias not in connections.settings:
            yield _message("E005", f"{path} commits on the database {alias!r}, which DATABASES doesn't have.")
        elif options.fenced:
            vendor = connections[alias].vendor
            # MySQL's own default is what it is left to by None.
            level = connections[alias].settings_dict["OPTIONS"].get("isolation_level", "read committed")
            if vendor not in VENDORS:
                yield _message("E008", f"{path} is fenced, but the database {alias!r} can't check a token.")
            elif vendor == "mysql" and (level or SNAPSHOTS).replace("-", " ").lower() == SNAPSHOTS:
                text = f"{path} is fenced, but the database {alias!r} runs at REPEATABLE READ."
                yield _message("W003", text)


@checked
def check_keys() -> Iterator[CheckMessage]:
    """Compare the keys of locked classes with their routes: a `dispatch` takes any argument by any name."""
    for view, names in _views():
        options: Options | None = getattr(view, "lock_options", None)
        kind = _class_of(view)
        # A function's own parameters were looked at when it was decorated.
        for template in templates_of(options.key) if options and kind else ():
            for value in template.values:
                if value.name not in names | {"request", "self"} and value.default is None:
                    text = f"{dotted_path(kind)} is locked by {template.source!r}, but a route to it has no "
                    known = ", ".join(sorted(names)) or "none"
                    text += f"argument {value.name!r}; it has {known}{template.advice(value, names)}"
                    yield _message("E012", text)


@checked
def check_row_locks() -> Iterator[CheckMessage]:
    """Find databases of locked functions that take `select_for_update()` and do nothing."""
    used = {alias for function in _decorated() for alias in _using(function.lock_options)}
    text = "Locked functions commit on {!r}, which is SQLite: it ignores select_for_update() silently."
    for alias in used & set(connections.settings):
        if connections[alias].vendor == "sqlite" and not settings.DEBUG:
            yield _message("W002", text.format(alias))


def _using(options: Options) -> set[str]:
    return {options.using} if isinstance(options.using, str) else set(options.using)


IN_ADMIN: Final = ("save_form", "save_formset", "save_model", "save_related", "delete_model")
"""Methods of a ModelAdmin that the admin calls inside a transaction, whatever ATOMIC_REQUESTS says."""


@checked
def check_atomic_requests() -> Iterator[CheckMessage]:
    """Find decorated views that are called in a transaction of Django's: each of their calls is refused."""
    atomic = {alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"]}
    for view, _ in _views():
        yield from _check_view(view, atomic)
        model_admin = type(getattr(view, "model_admin", None))
        for name in IN_ADMIN:
            method: Any = getattr(model_admin, name, None)
            if _ends_early(method):
                text = "is locked, but the admin calls it inside a transaction of its own"
                yield _message("E011", f"{dotted_path(method)} {text}")


def _check_view(view: Callable[..., Any], atomic: set[str]) -> Iterator[CheckMessage]:
    if wrapped := sorted(atomic - getattr(view, "_non_atomic_requests", set())):
        kind, number = _class_of(view), "E007" if _ends_early(view) else "E006"
        text = f"is locked, but ATOMIC_REQUESTS commits {', '.join(map(repr, wrapped))} after the release"
        methods: list[Any] = [getattr(kind, name, None) for name in dir(kind)]
        for method in [view] if number == "E007" else methods:
            if _ends_early(method):
                yield _message(number, f"{dotted_path(method)} {text}")


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


@checked
def check_celery() -> Iterator[CheckMessage]:
    """Find a broker that would deliver a locked task again while it waits in a worker to be retried."""
    if (celery := sys.modules.get("celery")) is None:
        return
    app = celery.current_app
    timeout = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    if timeout is None or timeout > LONGEST_COUNTDOWN:
        return
    text = f"{{}} is retried while its lock is taken, but the broker's visibility_timeout is {timeout:g} s."
    for task in app.tasks.values():
        if hasattr(task.run, "lock_options"):
            yield _message("W006", text.format(dotted_path(task.run)))
