"""The catalog in the admin, each product with its stock; counts and locations are inventory's pages."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from inventory import InventoryError, stock
from inventory.lines import MAX_QUANTITY
from inventory.models import Level, Location
from locking.admin.lookups import ListedLookups
from orders.admin.parts import STYLES, BigTable, ReadOnly, badge
from orders.models import CustomerPurchase, Product

_LEVELS = Level.objects.filter(item=OuterRef("stock")).order_by().values("item")


def _total(*states: str) -> Subquery:
    units = reduce(add, (F(state) for state in states))
    return Subquery(_LEVELS.annotate(units=Sum(units)).values("units"))


class ProductForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable
    """A product; its stock is changed by an entry of the ledger, never by writing over the number."""

    change_by = forms.IntegerField(
        label=_("Change stock by"),
        required=False,
        min_value=-MAX_QUANTITY,
        max_value=MAX_QUANTITY,
        help_text=_("Units that come in; negative: that go out."),
    )
    location = forms.ModelChoiceField(label=_("At location"), queryset=Location.objects.all(), required=False)
    cause = forms.CharField(
        label=_("Because of"),
        required=False,
        max_length=150,
        help_text=_("Delivery note, breakage …"),
    )

    class Meta:
        model = Product
        fields = ("sku", "name", "price", "currency", "active", "low_stock_threshold", "customer_limit")

    def clean(self) -> dict[str, Any]:
        """Refuse a change of an existing product's stock without its cause."""
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if data.get("change_by") and self.instance.pk and not data.get("cause"):
            self.add_error("cause", _("Say what changed the stock: the ledger keeps it."))
        if (data.get("change_by") or 0) < 0 and not self.instance.pk:
            self.add_error("change_by", _("A new product has no units that could go out."))
        return data

    def _post_clean(self) -> None:
        """Change the stock last, in the admin's transaction: what refuses it is shown beside the field."""
        super()._post_clean()  # type: ignore[misc]
        change = self.cleaned_data.get("change_by")
        if change and self.instance.pk and not self.errors:
            try:
                self._change_stock(change)
            except InventoryError as refused:
                self.add_error("change_by", ValidationError(str(refused)))

    def _change_stock(self, change: int) -> None:
        location, cause = self.cleaned_data.get("location"), f"admin:{self.cleaned_data['cause']}"
        if change < 0:
            stock.adjust(self.instance.sku, change, cause=cause, location=location.code if location else None)
        else:
            where = {"location": location.code} if location else {}
            stock.receive(self.instance.sku, change, cause=cause, **where)


@admin.register(Product)
class ProductAdmin(ListedLookups, BigTable, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """Products with what is for sale, reserved and sold."""

    NUMBERS = ("availability", "on_hand", "reserved", "committed", "unavailable")
    RULES = ("name", "price", "currency", "active", "low_stock_threshold", "customer_limit")

    form = ProductForm
    list_display = ("sku", "name", "price", "currency", *NUMBERS, "active")
    list_filter = ("active",)
    list_select_related = ("stock",)
    search_fields = ("^sku", "name")
    search_help_text = _("Beginning of the SKU, or name")
    ordering = ("sku",)

    class Media:
        css = STYLES

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the products with their balances, summed up for the rows of the page alone."""
        products: QuerySet[Any] = super().get_queryset(request).select_related("stock")
        states = ("available", "reserved", "committed", "unavailable")
        balances = {f"_{name}": _total(name) for name in states[1:]}
        annotated: QuerySet[Any] = products.annotate(_on_hand=_total(*states), **balances)
        return annotated

    @admin.display(description=_("for sale"))
    def availability(self, product: Any) -> str:
        """Return the units that may be sold, marked where they are few or none."""
        left, threshold = product.available, product.low_stock_threshold
        low = threshold is not None and left <= threshold
        return badge("ended" if left <= 0 else "warn" if low else "good", left)

    @admin.display(description=_("on hand"))
    def on_hand(self, product: Any) -> int:
        """Return the units that a count must find: sold ones that aren't shipped, too."""
        return int(product._on_hand or 0)

    @admin.display(description=_("reserved"))
    def reserved(self, product: Any) -> int:
        """Return the units of live reservations."""
        return int(product._reserved or 0)

    @admin.display(description=_("to be shipped"))
    def committed(self, product: Any) -> int:
        """Return the units that are sold and not shipped."""
        return int(product._committed or 0)

    @admin.display(description=_("unavailable"))
    def unavailable(self, product: Any) -> int:
        """Return the units that are damaged or held back."""
        return int(product._unavailable or 0)

    def get_fields(self, request: HttpRequest, obj: Product | None = None) -> tuple[str, ...]:
        """Return what a new product needs, or what there is to know about one."""
        if obj is None:
            return ("sku", *self.RULES, "change_by", "location")
        return ("sku", *self.NUMBERS, *self.RULES, "change_by", "location", "cause")

    def get_readonly_fields(self, request: HttpRequest, obj: Product | None = None) -> tuple[str, ...]:
        """Let a SKU that orders and the stock are named after be what it is."""
        return () if obj is None else ("sku", *self.NUMBERS)

    def save_model(self, request: HttpRequest, obj: Product, form: Any, change: bool) -> None:
        """Save the product, and receive the first units of a new one in the same transaction."""
        super().save_model(request, obj, form, change)
        units, location = form.cleaned_data.get("change_by"), form.cleaned_data.get("location")
        if units and not change:
            where = {"location": location.code} if location else {}
            stock.receive(obj.sku, units, cause=f"initial:{obj.pk}", **where)


@admin.register(CustomerPurchase)
class CustomerPurchaseAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """How many units each customer has bought."""

    list_display = ("customer", "product", "units")
    list_select_related = ("product",)
    search_fields = ("=customer", "=product__sku")
    search_help_text = _("Customer or SKU")
