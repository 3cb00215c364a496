"""Addresses of admin pages: those to which the pages link, and no others."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib.admin.options import IncorrectLookupParameters
from django.db import DataError
from django.http import HttpRequest

ENDINGS: Final = ("exact", "in", "isnull", "gte", "gt", "lte", "lt", "year", "month", "day")
"""What Django's own filters add to a field's name, after two underscores."""


class ListedLookups:
    """Admin that refuses queries that no filter offers, such as a regular expression that never ends.

    Django lets staff use every lookup on each field of the model. A value that the database can't read, such
    as a NUL character, leads back to the list instead of ending in an error of the server.
    """

    list_filter: ClassVar[Any]

    def lookup_allowed(self, lookup: str, value: Any, *request: Any) -> bool:
        """Return whether a filter of this page uses `lookup`."""
        listed = {getattr(each, "parameter_name", each) for each in self.list_filter}
        field, _, ending = lookup.partition("__")
        allowed: bool = super().lookup_allowed(lookup, value, *request)  # type: ignore[misc]
        return allowed and (lookup in listed or (field in listed and ending in ENDINGS))

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list; raise what leads to the list without conditions if a value can't be read."""
        try:
            return super().get_changelist_instance(request)  # type: ignore[misc]
        except (DataError, OverflowError) as error:
            raise IncorrectLookupParameters(str(error)) from error

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the row of an address, None for a key that can't be one."""
        try:
            return super().get_object(request, object_id, from_field)  # type: ignore[misc]
        except DataError:
            return None
