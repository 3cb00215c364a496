"""Importing deliveries in the admin: upload a CSV or XLSX file, see what it would do, confirm.

django-import-export has the pages and the formats; `stock_import` says what a line means, and
writes it to the ledger.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import escape
from django.utils.translation import gettext as _
from import_export.admin import ImportMixin
from import_export.fields import Field
from import_export.formats.base_formats import CSV, XLSX
from import_export.resources import ModelResource
from import_export.results import Error, Result, RowResult
from import_export.tmp_storages import CacheStorage

from inventory.models import StockMovement
from inventory.stock_import import (
    COLUMNS,
    OPTIONAL,
    Booked,
    Delivery,
    WrongLine,
    book,
    check_heading,
    lock_products,
    read_rows,
)

HEADING_LINES = 1


class PlainError(Error):  # type: ignore[misc]  # the library has no types
    """What is wrong with a file, without the traceback that means nothing to its author."""

    traceback = ""


class DeliveryResource(ModelResource):  # type: ignore[misc]
    """Writes each row to the ledger by `stock_import`; an error in any row undoes all."""

    class Meta:
        model = StockMovement
        fields: tuple[str, ...] = ()
        use_transactions = True

    def before_import(self, dataset: Any, **kwargs: Any) -> None:
        """Read the whole file, and lock its products in the order of their keys."""
        self._deliveries: dict[int, Delivery] = {}
        self._wrong: dict[int, WrongLine] = {}
        check_heading(dataset.headers or [])
        rows = ({name: _text(row[name]) for name in row} for row in dataset.dict)
        deliveries, wrong = read_rows(enumerate(rows, HEADING_LINES + 1))
        self._deliveries = {line.number: line for line in deliveries}
        self._wrong = {line.number: line for line in wrong}
        lock_products(deliveries)

    def import_row(self, row: Any, instance_loader: Any, **kwargs: Any) -> RowResult:
        """Book one row, or say what is wrong with it."""
        result = self.get_row_result_class()()
        result.diff = [escape(_text(row.get(name))) for name in self.get_diff_headers()]
        number = kwargs["row_number"] + HEADING_LINES
        try:
            result.import_type = self._booked(number)
        except ValueError as error:
            result.import_type = RowResult.IMPORT_TYPE_ERROR
            result.errors.append(PlainError(error, row=row, number=number))
        return result

    def _booked(self, number: int) -> str:
        if number in self._wrong:
            raise ValueError(self._wrong[number].reason)
        if number not in self._deliveries:  # the heading was refused; that is said once for all rows
            return str(RowResult.IMPORT_TYPE_SKIP)
        with transaction.atomic():
            how = book(self._deliveries[number])
        skipped = how is Booked.BEFORE
        return str(RowResult.IMPORT_TYPE_SKIP if skipped else RowResult.IMPORT_TYPE_NEW)

    def after_import(self, dataset: Any, result: Result, **kwargs: Any) -> None:
        """Nothing: the base class would reset the sequence of a table whose keys it had written."""

    def get_diff_headers(self) -> list[str]:
        """Return the columns of the preview."""
        return [*COLUMNS, *OPTIONAL]

    def get_user_visible_fields(self) -> list[Field]:
        """Return the columns that the page names above the form."""
        return [Field(column_name=name) for name in self.get_diff_headers()]

    def get_error_result_class(self) -> type[Error]:
        """Return errors without a traceback."""
        return PlainError


class DeliveryImport(ImportMixin):  # type: ignore[misc]
    """The import's pages for the admin of the ledger."""

    resource_classes = (DeliveryResource,)
    import_formats = (CSV, XLSX)
    tmp_storage_class = CacheStorage  # the next request may reach another server
    skip_admin_log = True  # each movement's cause says which delivery it was

    def has_import_permission(self, request: HttpRequest) -> bool:
        """Users with the permission to add movements may import deliveries."""
        return request.user.has_perm("inventory.add_stockmovement")

    def process_result(self, result: Result, request: HttpRequest) -> HttpResponse:
        """Report what was booked; what has become wrong since the preview is told, and nothing was booked."""
        if not result.has_errors():
            response: HttpResponse = super().process_result(result, request)
            return response
        errors = [error.error for error in result.base_errors]
        errors += [f"{number}: {error.error}" for number, row in result.row_errors() for error in row]
        for error in errors:
            messages.error(request, _("Nothing was booked. %(error)s") % {"error": error})
        return HttpResponseRedirect(reverse("admin:inventory_stockmovement_import"))


def _text(cell: Any) -> str | None:
    """Return a cell as its text; a sheet has numbers, and nothing at all for an empty cell."""
    return "" if cell is None else str(cell)
