"""What a view's body changed beside the database: put back where the database rolled the body back."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any, Final

from django.contrib.messages.storage.base import BaseStorage
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest

DATA: Final = "_session_cache"
"""The attribute of a session that holds its data once they were read."""


class RequestState:
    """The session and the messages of a request as they are now.

    Nothing is read from the session's store for it. What the body wrote there by itself (`session.save()` on
    a store that no transaction covers) isn't undone.
    """

    def __init__(self, request: HttpRequest | None) -> None:
        session, messages = getattr(request, "session", None), getattr(request, "_messages", None)
        self._session = session if isinstance(session, SessionBase) else None
        self._messages = messages if isinstance(messages, BaseStorage) else None
        self._in_session = _session_copy(vars(session)) if self._session is not None else {}
        self._in_messages = _shallow(vars(messages)) if self._messages is not None else {}

    def restore(self) -> None:
        """Put both back; it may be done again."""
        if self._messages is not None:
            _replace(self._messages, _shallow(self._in_messages))
        if self._session is not None:
            left = self._session.session_key
            _replace(self._session, _session_copy(self._in_session))
            before = self._session.session_key
            if before not in (left, None) and not self._session.exists(before):
                # The body gave it another key, and the old one is gone for good: it is saved under a new one.
                self._session._session_key, self._session.modified = None, True


def _session_copy(values: dict[str, Any]) -> dict[str, Any]:
    return {name: deepcopy(value) if name == DATA else value for name, value in values.items()}


def _shallow(values: dict[str, Any]) -> dict[str, Any]:
    return {name: copy(value) if isinstance(value, list) else value for name, value in values.items()}


def _replace(target: object, values: dict[str, Any]) -> None:
    vars(target).clear()
    vars(target).update(values)
