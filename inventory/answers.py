"""Keeping what `write` returned, so that a repeated sale answers as the first time."""

from __future__ import annotations

import json
from typing import Any

from django.apps import apps
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model

from inventory.exceptions import InvalidLines

_MODEL = "__model__"


def as_stored(value: Any) -> Any:
    """Return `value` as JSON; a model's instance by its key. None is kept as nothing.

    Raises:
        InvalidLines: it can't be kept; raised before the commit, so nothing is sold.
    """
    if value is None:
        return None
    if isinstance(value, Model):
        if value.pk is None:
            raise InvalidLines(
                f"write() returned a {type(value).__name__} that isn't saved; save it, or return None"
            )
        return {_MODEL: [value._meta.label, json.loads(json.dumps(value.pk, cls=DjangoJSONEncoder))]}
    if isinstance(value, list | tuple):
        return [as_stored(each) for each in value]
    if isinstance(value, dict):
        return {str(key): as_stored(each) for key, each in value.items()}
    try:
        return json.loads(json.dumps(value, cls=DjangoJSONEncoder))
    except TypeError:
        raise InvalidLines(
            f"write() returned {value!r}, which can't be kept for a repeated call; return a model instance, "
            f"JSON, a list or dict of those, or None"
        ) from None


def restored(stored: Any, using: str) -> Any:
    """Return what `as_stored` was given; instances are read from the database, None where they are gone."""
    if isinstance(stored, list):
        return [restored(each, using) for each in stored]
    if isinstance(stored, dict) and set(stored) == {_MODEL}:
        label, pk = stored[_MODEL]
        return apps.get_model(label)._base_manager.using(using).filter(pk=pk).first()
    if isinstance(stored, dict):
        return {key: restored(each, using) for key, each in stored.items()}
    return stored
