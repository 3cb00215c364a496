"""From an alias in `LOCKING` to its backend: one backend per alias and process, shared by all threads.

Django's connection handler gives every thread its own connection object. A lock backend is thread-safe and
keeps what the whole process must share (idle sockets, the memory store, the queue of waiters), so here one
instance serves all threads, and a forked child starts with none: sockets that two processes share mix up
their replies.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.connection import BaseConnectionHandler, ConnectionDoesNotExist
from django.utils.module_loading import import_string

from locking.backends.base import BaseLockBackend
from locking.conf import AliasSettings, read_alias
from locking.signals import tell
from locking.utils.background import after_fork

DEFAULT_ALIAS = "default"

EXTRAS: Final = {
    "redis": "django-holdfast[redis]",
    "django_redis": "django-redis",
    "kazoo": "django-holdfast[zookeeper]",
    "requests": "django-holdfast[etcd]",
}
"""By a module that may be missing: what to install."""


class InvalidLockBackend(ConnectionDoesNotExist):
    """`LOCKING` has no such alias."""


class Configured:
    """One reading of the setting, and the backends that came of it."""

    # A change of the setting replaces it as a whole: a thread that is building a backend meanwhile puts it
    # where it is never looked for.
    def __init__(self, given: dict[str, Any] | None) -> None:
        self.given = given
        self.settings: dict[str, Any] | None = None
        self.backends: dict[str, BaseLockBackend] = {}
        self.building = threading.Lock()


class LockHandler(BaseConnectionHandler):  # type: ignore[type-arg] # it takes none when it runs
    """`locks["default"]` is the backend that `LOCKING["default"]` describes."""

    settings_name = "LOCKING"

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        super().__init__(settings)
        self._current = Configured(settings)
        setting_changed.connect(self._on_setting_changed)
        after_fork(self._forget)

    @property
    def settings(self) -> dict[str, Any]:
        """What `LOCKING` says."""
        current = self._current
        if current.settings is None:
            current.settings = self.configure_settings(current.given)
        return current.settings

    def __getitem__(self, alias: str) -> BaseLockBackend:
        current = self._current
        backend = current.backends.get(alias)
        if backend is not None:
            return backend
        with current.building:
            if alias not in current.backends:
                current.backends[alias] = self.create_connection(alias)
                tell("used", current.backends[alias])
            return current.backends[alias]

    def __setitem__(self, alias: str, backend: BaseLockBackend) -> None:
        self._current.backends[alias] = backend

    def __delitem__(self, alias: str) -> None:
        del self._current.backends[alias]

    def all(self, initialized_only: bool = False) -> list[BaseLockBackend]:
        """Return every configured backend, or with `initialized_only` those that are in use."""
        return list(self._current.backends.values()) if initialized_only else [self[alias] for alias in self]

    def initialized(self, alias: str) -> BaseLockBackend | None:
        """Return the backend of `alias` if it is in use; never builds it, which may import and connect."""
        return self._current.backends.get(alias)

    def configure_settings(self, settings: dict[str, Any] | None) -> dict[str, Any]:
        """Without the setting there is one alias, on the default cache."""
        if settings is None:
            settings = getattr(django_settings, self.settings_name, {})
        if not isinstance(settings, Mapping) or not all(isinstance(alias, str) for alias in settings):
            raise ImproperlyConfigured(
                f"LOCKING must be a dict of aliases and their settings, not {settings!r}"
            )
        return {**settings} or {DEFAULT_ALIAS: {"CACHE": "default"}}

    def entry(self, alias: str) -> dict[str, Any]:
        """Return what `LOCKING` says of `alias`. InvalidLockBackend: nothing."""
        if alias not in self.settings:
            known = ", ".join(sorted(self.settings))
            raise InvalidLockBackend(f"LOCKING has no alias {alias!r}; it has {known}")
        found: dict[str, Any] = self.settings[alias]
        return found

    def create_connection(self, alias: str) -> BaseLockBackend:
        """Build the backend of `alias`; no network yet."""
        self.entry(alias)
        try:
            options = self.options(alias)
            return _class_at(options.backend)(options)
        except Exception as error:
            path = f"LOCKING[{alias!r}]"
            if isinstance(error, ImproperlyConfigured) and path in str(error):
                raise
            extra = EXTRAS.get(getattr(error, "name", None) or "")
            advice = "" if extra is None else f'; pip install "{extra}"'
            raise ImproperlyConfigured(f"{path}: {error}{advice}") from error

    def options(self, alias: str) -> AliasSettings:
        """Return what `LOCKING` says of `alias`, checked; without a KEY_PREFIX the backend's default."""
        entry = self.entry(alias)
        options = read_alias(alias, entry)
        if entry.get("KEY_PREFIX") is not None:
            return options
        return replace(options, key_prefix=_class_at(options.backend).default_key_prefix(options))

    def reset(self) -> None:
        """Close and forget every backend, and read the setting again at the next use."""
        for backend in self.all(initialized_only=True):
            backend.close()
        self._forget()

    def _forget(self) -> None:
        self._current = Configured(None)

    def _on_setting_changed(self, *, setting: str, **_: object) -> None:
        if setting in ("LOCKING", "CACHES"):
            self.reset()


def _class_at(path: str) -> type[BaseLockBackend]:
    found = import_string(path)
    if not (isinstance(found, type) and issubclass(found, BaseLockBackend)):
        raise ImproperlyConfigured(f"BACKEND={path!r} is no lock backend, but {found!r}")
    return found


locks = LockHandler()
