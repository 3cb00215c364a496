"""System checks: mistakes in settings and in decorators, told before the first request meets them.

`manage.py check` opens no connection. The live checks ask the servers, and only run as
`manage.py check --tag locking_live`. Every id is explained in `docs/library/reference/checks.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product, takewhile
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.urls import URLPattern, URLResolver, get_resolver

from locking.conf import DEFAULTS, read_alias
from locking.core.handler import DEFAULT_ALIAS, InvalidLockBackend, locks
from locking.core.liveness import base_directory
from locking.exceptions import BackendError
from locking.keys.names import check_ttl
from locking.keys.template import dotted_path
from locking.transactions.decorator import DECORATED, Options, check_policy
from locking.utils.databases import VENDORS
from locking.utils.reach import is_same, locked_functions, may_read

LIVE_TAG: Final = "locking_live"


# --- the setting ------------------------------------------------------------------------------------------


@register("locking")
def check_setting(**_: Any) -> list[CheckMessage]:
    """Check `LOCKING`, each alias by itself."""
    setting = getattr(settings, "LOCKING", {})
    if not isinstance(setting, Mapping):
        return [_setting_error(f"LOCKING must be a dict of aliases, not {setting!r}.")]
    if setting and DEFAULT_ALIAS not in setting:
        known = ", ".join(map(repr, setting))
        return [_missing_alias(f"LOCKING has no alias 'default', only {known}.")]
    return [message for alias in locks for message in _check_alias(alias, locks.settings[alias])]


@register("locking")
def check_runtime_directory(**_: Any) -> list[CheckMessage]:
    """Check `LOCKING_RUNTIME_DIR`, where processes show that they are alive."""
    try:
        base_directory()
    except ImproperlyConfigured as error:
        return [Error(f"{error}.", hint="Name an absolute path, or None to leave it out.", id="locking.E010")]
    return []


def _check_alias(alias: str, raw: Any) -> Iterator[CheckMessage]:
    """Tell the first thing that is wrong with an alias, or else what its backend has to say."""
    given = raw if isinstance(raw, Mapping) else {}
    try:
        for key in ("TTL", "WATCHDOG_TTL"):
            if given.get(key) is not None:
                check_ttl(given[key], source=key)
    except ValueError as error:
        hint = "Give seconds above 0, or None: a TTL of 30 s kept alive by the watchdog."
        yield Error(f"LOCKING[{alias!r}]: {error}.", hint=hint, id="locking.E003")
        return
    try:
        check_policy(read_alias(alias, raw).on_conflict)
    except (ImproperlyConfigured, ValueError) as error:
        yield _setting_error(f"LOCKING[{alias!r}]: {error}.")
        return
    yield from _check_backend(alias)


def _check_backend(alias: str) -> Iterator[CheckMessage]:
    try:
        backend = locks[alias]
    except (ImproperlyConfigured, ImportError, LookupError) as error:
        yield Error(
            f"The backend of LOCKING[{alias!r}] can't be made: {error}",
            hint="Correct BACKEND, CACHE or LOCATION, or install the package that the backend needs.",
            id="locking.E004",
        )
        return
    if not backend.shared_between_processes and not settings.DEBUG and not _under_test():
        yield Warning(
            f"LOCKING[{alias!r}] uses {backend.settings.backend}, whose locks hold within one process only.",
            hint="Use it in tests; in production take a backend that all processes share, such as Redis.",
            id="locking.W001",
        )
    yield from backend.check()


def _under_test() -> bool:
    """Whether Django's test environment is set up, as its test runner and pytest-django do first."""
    return "django.test.utils" in sys.modules and hasattr(
        sys.modules["django.test.utils"]._TestState, "saved_data"
    )


def _setting_error(text: str) -> CheckMessage:
    return Error(text, hint=f"Each alias takes {', '.join(DEFAULTS)}.", id="locking.E001")


def _missing_alias(text: str) -> CheckMessage:
    return Error(text, hint="Add the alias to LOCKING, or name one that it has.", id="locking.E002")


# --- decorated functions ----------------------------------------------------------------------------------


@register("locking")
def check_decorated(**_: Any) -> list[CheckMessage]:
    """Check what the decorators name: aliases of `LOCKING` and of `DATABASES`."""
    messages = [message for function in _decorated() for message in _check_options(function)]
    return sorted(messages, key=lambda message: message.msg)


def _decorated() -> list[Callable[..., Any]]:
    """What was decorated, the views too: checks run in no certain order, the first must load them."""
    if getattr(settings, "ROOT_URLCONF", None):
        list(_views(get_resolver().url_patterns))
    return list(DECORATED)


def _check_options(function: Any) -> Iterator[CheckMessage]:
    options: Options = function.lock_options
    path = dotted_path(function)
    if options.backend not in locks:
        yield _missing_alias(f"{path} is locked on {options.backend!r}, which LOCKING doesn't have.")
    for alias in sorted(_using(options)):
        if alias not in connections.settings:
            yield Error(
                f"{path} commits on the database {alias!r}, which DATABASES doesn't have.",
                hint="Correct using=, or add the database.",
                id="locking.E005",
            )


@register("locking")
def check_fenced(**_: Any) -> list[CheckMessage]:
    """Find functions that are fenced where nobody can check a token: each of their calls is refused."""
    messages = [message for function in _decorated() for message in _check_fence(function)]
    return sorted(messages, key=lambda message: message.msg)


def _check_fence(function: Any) -> Iterator[CheckMessage]:
    options: Options = function.lock_options
    if not options.fenced:
        return
    path = dotted_path(function)
    if not _mints_tokens(options.backend):
        yield _unfenced(f"{path} is fenced, but the backend {options.backend!r} mints no tokens.")
    for alias in sorted(_using(options)):
        if alias not in connections.settings:
            continue
        if connections[alias].vendor not in VENDORS:
            yield _unfenced(f"{path} is fenced, but the database {alias!r} can't check a token.")
        elif connections[alias].vendor == "mysql" and _repeats_reads(alias):
            yield Warning(
                f"{path} is fenced, but the database {alias!r} runs at REPEATABLE READ.",
                hint="Set OPTIONS['isolation_level'] to 'read committed' (Django's default), unless the"
                " server is MariaDB with innodb_snapshot_isolation=ON: any other refuses the call.",
                id="locking.W003",
            )


def _repeats_reads(alias: str) -> bool:
    """Whether MySQL is told to, or left to its own default, which is to."""
    level = connections[alias].settings_dict["OPTIONS"].get("isolation_level", "read committed")
    return level is None or level.lower().replace("-", " ") == "repeatable read"


def _mints_tokens(alias: str) -> bool:
    try:
        return locks[alias].supports_fencing
    except (ImproperlyConfigured, ImportError, LookupError):
        return True  # told by locking.E002 or E004


@register("locking")
def check_row_locks(**_: Any) -> list[CheckMessage]:
    """Find databases of locked functions that take `select_for_update()` and do nothing."""
    if settings.DEBUG:
        return []
    every: list[Any] = _decorated()
    used = {alias for function in every for alias in _using(function.lock_options)}
    return [_no_row_locks(alias) for alias in sorted(used & set(connections.settings)) if _is_sqlite(alias)]


def _is_sqlite(alias: str) -> bool:
    return connections[alias].vendor == "sqlite"


def _no_row_locks(alias: str) -> CheckMessage:
    return Warning(
        f"Locked functions commit on {alias!r}, which is SQLite: it ignores select_for_update() silently.",
        hint="A row lock protects nothing there: use fenced=True or a conditional UPDATE, or PostgreSQL.",
        id="locking.W002",
    )


def _unfenced(text: str) -> CheckMessage:
    return Error(
        text,
        hint="Leave fenced out, or use a backend that mints tokens and PostgreSQL, MariaDB, MySQL or SQLite.",
        id="locking.E008",
    )


def _using(options: Options) -> set[str]:
    return {options.using} if isinstance(options.using, str) else set(options.using)


# --- ATOMIC_REQUESTS --------------------------------------------------------------------------------------


@register("locking")
def check_atomic_requests(**_: Any) -> list[CheckMessage]:
    """Find decorated functions that are called in a transaction of Django's: each of their calls is refused.

    Every one that a URLconf leads to is looked at: views of Django, Django REST framework and Django Ninja,
    and what the admin calls.
    """
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    atomic = {alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"]}
    views = list(_views(get_resolver().url_patterns))
    entries = [view for view in views if hasattr(view, "lock_options")]
    messages = [m for view in views for m in (*_check_view(view, atomic, entries), *_check_admin(view))]
    return list({(message.id, message.msg): message for message in messages}.values())


def _views(patterns: Iterable[URLPattern | URLResolver]) -> Iterator[Callable[..., Any]]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _views(pattern.url_patterns)
        else:
            yield pattern.callback


def _check_view(
    view: Callable[..., Any], atomic: set[str], entries: list[Callable[..., Any]]
) -> Iterator[CheckMessage]:
    wrapped = atomic - getattr(view, "_non_atomic_requests", set())
    if not wrapped:
        return
    when = f"ATOMIC_REQUESTS commits {', '.join(map(repr, sorted(wrapped)))} after the release"
    for function in filter(_ends_early, locked_functions(view)):
        text = f"{dotted_path(function)} is locked, but {when}."
        if is_same(function, view):
            hint = "Name the database too: @distributed_lock(…, using=[…])."
            yield Error(text, hint=hint, id="locking.E007")
        elif not any(is_same(function, entry) for entry in entries):  # it is called by its own URL
            yield Error(text, hint=INSIDE, id="locking.E006")


INSIDE: Final = (
    "Put @method_decorator(distributed_lock(…), name='dispatch') on the class, or the decorator above"
    " @api_view, around what the URLconf calls. Where that can't be, say on_open_transaction='hold'."
)

IN_ADMIN: Final = ("save_form", "save_formset", "save_model", "save_related", "delete_model")
"""Methods of a ModelAdmin that the admin calls inside a transaction, whatever ATOMIC_REQUESTS says."""


def _check_admin(view: Callable[..., Any]) -> Iterator[CheckMessage]:
    model_admin = getattr(view, "model_admin", None)
    for name in IN_ADMIN:
        method: Any = getattr(type(model_admin), name, None)
        if method is not None and _ends_early(method):
            yield Error(
                f"{dotted_path(method)} is locked, but the admin calls it inside a transaction of its own.",
                hint="Say on_open_transaction='hold', or decorate changeform_view or delete_view instead.",
                id="locking.E011",
            )


@register("locking")
def check_dispatch(**_: Any) -> list[CheckMessage]:
    """Find locked methods of views with a `dispatch` that runs before the lock, and may have read by then."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    views = _views(get_resolver().url_patterns)
    classes = {getattr(view, "view_class", None) or getattr(view, "cls", None) for view in views}
    return sorted(
        (message for kind in classes if kind for message in _check_dispatch(kind)), key=lambda m: m.msg
    )


def _check_dispatch(kind: type) -> Iterator[CheckMessage]:
    own = [dispatch for each in kind.__mro__ if (dispatch := vars(each).get("dispatch")) is not None]
    outside = list(takewhile(lambda dispatch: not hasattr(dispatch, "lock_options"), own))
    locked = own[len(outside) :][:1] or locked_functions(kind)
    before = dict.fromkeys(dotted_path(dispatch) for dispatch in outside if may_read(dispatch))
    for function, dispatch in product(locked, before):
        yield Warning(
            f"{dotted_path(function)} is locked, but {dispatch} runs before the lock.",
            hint="If dispatch, or what it calls, reads what the lock protects, put"
            " @method_decorator(distributed_lock(…), name='dispatch') on the class. If it only reads other"
            " things, such as the user, ignore this: SILENCED_SYSTEM_CHECKS = ['locking.W005'].",
            id="locking.W005",
        )


def _ends_early(function: Any) -> bool:
    options: Options | None = getattr(function, "lock_options", None)
    if options is None:
        return False
    try:
        return options.open_transaction_policy() == "refuse"
    except (ImproperlyConfigured, ImportError, InvalidLockBackend):
        return True  # the alias can't be used: another check says why


# --- live -------------------------------------------------------------------------------------------------


@register(LIVE_TAG)
def check_live(**_: Any) -> list[CheckMessage]:
    """Ask every backend's servers, when asked to by tag."""
    if not _asked_by_tag():
        return []
    return [message for alias in locks for message in _ask(alias)]


def _asked_by_tag() -> bool:
    """Without a tag Django runs every check, and tells none which were given; its caller's frame does."""
    tags = sys._getframe(2).f_locals.get("tags")
    return LIVE_TAG in (tags or ())


def _ask(alias: str) -> list[CheckMessage]:
    try:
        return locks[alias].check(live=True)
    except BackendError as error:
        hint = "Start the server, or correct its address in LOCKING or CACHES."
        return [Error(f"LOCKING[{alias!r}] is not usable: {error}", hint=hint, id="locking.E101")]
    except (ImproperlyConfigured, ImportError, LookupError):
        return []  # told by locking.E004
