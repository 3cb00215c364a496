"""Admin pages of the package's own models; all that is sold, received or counted goes through `stock`.

A project takes a page over by registering its own subclass first, or after `site.unregister(Item)`. No page
counts a table, sorts one, or searches it without an index: each costs the same for ten rows and for millions.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Final
from uuid import uuid4

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from inventory.api import DEFAULT_LOCATION, stock_of
from inventory.exceptions import InventoryError
from inventory.lines import MAX_CAUSE, MAX_QUANTITY
from inventory.models import BALANCES, Count, Entry, Item, Level, Location, Movement, Reservation

MOST: Final = 10_000
"""Rows that a list can be turned through; what is farther is searched for."""


class ShortPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no farther than `MOST`."""

    @cached_property
    def count(self) -> int:
        """Return how many rows there are, or `MOST`."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST].count())


class StockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """What all lists share."""

    paginator = ShortPaginator
    show_full_result_count = False

    def lookup_allowed(self, lookup: str, value: Any, *request: Any) -> bool:
        """Refuse regular expressions, which can run forever, and text that no database stores."""
        allowed: bool = super().lookup_allowed(lookup, value, *request)
        return allowed and "regex" not in lookup and "\0" not in str(value)


class ReadOnlyAdmin(StockAdmin):
    """The ledger and what belongs to it: looked at, never written."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        """Refuse."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False


class LevelInline(admin.TabularInline):  # type: ignore[type-arg]
    """Where an item's units are; its limits can be changed."""

    model = Level
    fields = ("location", *BALANCES, "backorder_limit", "safety_stock", "history")
    readonly_fields = ("location", *BALANCES, "history")
    extra = 0
    can_delete = False

    def formfield_for_dbfield(self, *args: Any, **kwargs: Any) -> Any:
        """Name each field for those who hear the page: the head of its column is no label."""
        field = super().formfield_for_dbfield(*args, **kwargs)
        if field is not None:
            field.widget.attrs["aria-label"] = field.label
        return field

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        """Refuse: receiving units makes a level."""
        return False

    @admin.display(description=_("history"))
    def history(self, level: Level) -> str:
        """Link to the level's movements, the newest first."""
        opts = Movement._meta
        page = reverse(
            f"admin:{opts.app_label}_{opts.model_name}_changelist", current_app=self.admin_site.name
        )
        return format_html('<a href="{}?level={}">{}</a>', page, level.pk, _("movements"))


class ChangeForm(forms.Form):
    """What a clerk changes by hand."""

    VERBS: ClassVar = (
        ("receive", _("Receive units")),
        ("count", _("Enter a count")),
        ("adjust", _("Add units, or take off lost ones (below 0)")),
    )

    verb = forms.ChoiceField(label=_("What"), choices=VERBS)
    quantity = forms.IntegerField(label=_("Quantity"), min_value=-MAX_QUANTITY, max_value=MAX_QUANTITY)
    location = forms.CharField(label=_("Location"), initial=DEFAULT_LOCATION, max_length=64)
    cause = forms.CharField(
        label=_("Cause"),
        max_length=MAX_CAUSE,
        help_text=_("Names this change: a delivery note, a count. The same one counts once."),
    )

    def post(self, item: Item, actor: str) -> None:
        """Make the change, or raise InventoryError."""
        data = self.cleaned_data
        verb = getattr(stock_of(item._state.db), data["verb"])
        verb(item.sku, data["quantity"], cause=data["cause"], location=data["location"], actor=actor)


class ItemAdmin(StockAdmin):
    """Items, their levels, and a form that changes stock."""

    list_display = ("sku", "available")
    ordering = ("sku",)
    search_fields = ("sku__startswith",)
    search_help_text = _("The beginning of the SKU")
    inlines = (LevelInline,)
    change_form_template = "inventory/admin/item.html"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Keep the SKU of an item that is there."""
        return () if obj is None else ("sku", "available")

    def get_urls(self) -> list[URLPattern]:
        """Add the form's page."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_stock"
        view = self.admin_site.admin_view(self.change_stock)
        return [path("<path:object_id>/stock/", view, name=name), *super().get_urls()]

    def change_stock(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form, and make its change."""
        item = self.get_object(request, object_id)
        if item is None:
            raise Http404
        if not self.has_change_permission(request, item):
            raise PermissionDenied
        form = ChangeForm(request.POST or None, initial={"cause": f"admin-{uuid4().hex[:12]}"})
        if form.is_valid():
            try:
                form.post(item, request.user.get_username())
            except InventoryError as error:
                form.add_error(None, str(error))
            else:
                messages.success(request, _("The stock of %(sku)s has been changed.") % {"sku": item.sku})
                app, model = self.opts.app_label, self.opts.model_name
                here = self.admin_site.name
                return HttpResponseRedirect(
                    reverse(f"admin:{app}_{model}_change", args=[item.pk], current_app=here)
                )
        context = {
            **self.admin_site.each_context(request),
            "form": form,
            "original": item,
            "opts": self.opts,
            "title": item.sku,
        }
        return render(request, "inventory/admin/change_stock.html", context)


class LocationAdmin(StockAdmin):
    """Places, and whether their units are for sale."""

    list_display = ("code", "name", "priority", "active")
    search_fields = ("code__startswith",)


class MovementInline(admin.TabularInline):  # type: ignore[type-arg]
    """An entry's movements."""

    model = Movement
    fields = readonly_fields = ("level", "source", "target", "quantity")
    extra = 0
    can_delete = False

    def get_queryset(self, request: HttpRequest) -> Any:
        """Bring what a level is called along."""
        return super().get_queryset(request).select_related("level__item", "level__location")

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        """Refuse."""
        return False


class EntryAdmin(ReadOnlyAdmin):
    """Every change of stock, the newest first."""

    list_display = ("cause", "kind", "actor", "created_at")
    ordering = ("-pk",)
    search_fields = ("cause__exact",)
    search_help_text = _("The whole cause")
    inlines = (MovementInline,)


class MovementAdmin(ReadOnlyAdmin):
    """The movements of a level, or of all, the newest first; an item's page links here."""

    list_display = ("entry", "level", "kind", "source", "target", "quantity", "actor", "created_at")
    list_display_links = None
    list_select_related = ("entry", "level__item", "level__location")
    ordering = ("-pk",)
    search_fields = ("entry__cause__exact",)
    search_help_text = _("The whole cause")

    @admin.display(description=_("kind"))
    def kind(self, movement: Movement) -> str:
        """Return what was done."""
        return str(movement.entry.get_kind_display())

    @admin.display(description=_("actor"))
    def actor(self, movement: Movement) -> str:
        """Return who did it."""
        return str(movement.entry.actor)

    @admin.display(description=_("created"))
    def created_at(self, movement: Movement) -> Any:
        """Return when."""
        return movement.entry.created_at


class ReservationAdmin(ReadOnlyAdmin):
    """Reservations, the newest first."""

    list_display = ("id", "reference", "state", "expires_at")
    ordering = ("-entry_id",)
    search_fields = ("reference__exact",)
    search_help_text = _("The whole reference")


class CountAdmin(ReadOnlyAdmin):
    """What was counted, the newest first."""

    list_display = ("entry", "level", "counted", "expected")
    list_select_related = ("entry", "level__item", "level__location")
    ordering = ("-pk",)
    search_fields = ("level__item__sku__exact",)


for _model, _admin in (
    (Item, ItemAdmin),
    (Location, LocationAdmin),
    (Entry, EntryAdmin),
    (Movement, MovementAdmin),
    (Reservation, ReservationAdmin),
    (Count, CountAdmin),
):
    if not admin.site.is_registered(_model):
        admin.site.register(_model, _admin)
