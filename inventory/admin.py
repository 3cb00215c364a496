"""Stock as the people who keep it see it."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any
from uuid import uuid4

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import DecimalField, ExpressionWrapper, F, Q, QuerySet, Sum
from django.db.models.functions import Now
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from inventory import reservations
from inventory.admin_parts import (
    STYLES,
    ReadOnly,
    ReasonForm,
    ask,
    badge,
    must_ask,
    number,
    reason,
    too_many,
)
from inventory.admin_places import Place, places_of
from inventory.delivery_admin import DeliveryImport
from inventory.domain import MAX_UNITS
from inventory.locations import lock_levels, units_at
from inventory.models import (
    LAB_PREFIX,
    CustomerPurchase,
    Product,
    StockLevel,
    StockLocation,
    StockMovement,
    StockReservation,
    Stocktake,
)
from inventory.move_admin import MovingUnits
from inventory.segments import fold, in_all, levels
from inventory.services import change_stock, create_product, forget_copies
from inventory.stocktake import MAX_COUNT, CountTooLow, take_stock, with_count
from inventory.strategies import STRATEGIES

Kind = StockMovement.Kind
COUNTED = "counted-"
"""The fields for counts are called so, and by their place."""
MONEY: DecimalField[Any, Any] = DecimalField(max_digits=20, decimal_places=2)


class StockFilter(admin.SimpleListFilter):
    """How much there is."""

    title = _("stock")
    parameter_name = "stock"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [("none", _("sold out")), ("below", _("below zero")), ("some", _("in stock"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Product]) -> QuerySet[Product]:
        """Return the products of the choice."""
        conditions = {
            "none": Q(on_hand_in_all=0),
            "below": Q(on_hand_in_all__lt=0),
            "some": Q(on_hand_in_all__gt=0),
        }
        return queryset.filter(conditions.get(self.value() or "", Q()))


class LabFilter(admin.SimpleListFilter):
    """Real products, or the oversell lab's."""

    title = _("oversell lab")
    parameter_name = "lab"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [("no", _("real products")), ("yes", _("the lab's"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Product]) -> QuerySet[Product]:
        """Return the products of the choice."""
        conditions = {"yes": Q(sku__startswith=LAB_PREFIX), "no": ~Q(sku__startswith=LAB_PREFIX)}
        return queryset.filter(conditions.get(self.value() or "", Q()))


class ProductForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable
    """A product; its stock is changed by a movement, never by writing over the number."""

    change_by = forms.IntegerField(
        label=_("Change stock by"),
        required=False,
        min_value=-MAX_UNITS,
        max_value=MAX_UNITS,
        help_text=_("Units that come in; negative: that go out."),
    )
    location = forms.ModelChoiceField(
        label=_("At location"), queryset=StockLocation.objects.all(), required=False
    )
    cause = forms.CharField(
        label=_("Because of"),
        required=False,
        max_length=150,
        help_text=_("Delivery note, stocktaking, breakage …"),
    )

    class Meta:
        model = Product
        fields = (
            "sku",
            "name",
            "price",
            "currency",
            "active",
            "backorder_limit",
            "low_stock_threshold",
            "customer_limit",
            "strategy",
        )

    def clean_backorder_limit(self) -> int:
        """Refuse a limit below what was sold and reserved beyond the stock already."""
        limit = int(self.cleaned_data["backorder_limit"])
        if "backorder_limit" not in self.changed_data:
            return limit
        self._lock()
        sold = -self._left()
        if limit < sold:
            raise forms.ValidationError(_("%(sold)s were sold beyond the stock already.") % {"sold": sold})
        return limit

    def clean_strategy(self) -> str:
        """Refuse a strategy that isn't there or oversells."""
        name = str(self.cleaned_data["strategy"])
        sound = [one.name for one in STRATEGIES.values() if one.sound and not one.unconfigured()]
        if name and name not in sound:
            raise forms.ValidationError(_("Choose of %(names)s.") % {"names": ", ".join(sound)})
        return name

    def clean(self) -> dict[str, Any]:
        """Refuse a change without its cause, and one that would leave less than nothing."""
        data = super().clean() or self.cleaned_data
        change = data.get("change_by") or 0
        if change and self.instance.pk and not data.get("cause"):
            self.add_error("cause", _("Say what changed the stock: the ledger keeps it."))
        if change < 0:
            self._lock()
        left = self._left() + data.get("backorder_limit", 0)
        if left + change < 0:
            self.add_error("change_by", _("There are only %(left)s.") % {"left": left})
        elif self.instance.on_hand + change > MAX_UNITS:
            self.add_error("change_by", _("At most %(most)s units can be on hand.") % {"most": MAX_UNITS})
        elif self.instance.pk and change < 0:
            self._clean_location(data.get("location"), -change)
        return data

    def _lock(self) -> None:
        """Lock stock and levels until the admin's transaction ends: what is found holds until it is saved.

        Units in other rows are put back: a sale from there would wait for no product's row.
        """
        if self.instance.pk:
            fold([self.instance])
            lock_levels(self.instance)

    def _left(self) -> int:
        """Return the units that are available, less those that may be sold beyond the stock."""
        if not self.instance.pk:
            return 0
        return levels([self.instance])[self.instance.sku] - int(self.initial["backorder_limit"])

    def _clean_location(self, location: StockLocation | None, units: int) -> None:
        """Refuse to take more from a location, or from what is at none, than is there."""
        there = units_at(self.instance, location)
        if there < units:
            self.add_error("location", _("There are only %(left)s.") % {"left": there})


class MovementInline(ReadOnly, admin.TabularInline):  # type: ignore[type-arg]  # not subscriptable
    """The latest movements of a product."""

    model = StockMovement
    fields = ("created_at", "kind", "quantity", "shipped", "cause")
    readonly_fields = fields
    extra = 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[StockMovement]:
        """Return the newest 20: a hot product has thousands."""
        match = request.resolver_match
        movements = super().get_queryset(request)
        if match is None or "object_id" not in match.kwargs:
            return movements
        newest = movements.filter(product_id=match.kwargs["object_id"]).values_list("pk", flat=True)[:20]
        return movements.filter(pk__in=list(newest))


@admin.register(Product)
class ProductAdmin(MovingUnits, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """Products with what is on hand, what was sold, and what the shelf is worth."""

    KNOWN = ("sku", "stock", "reserved", "availability", "counted", "sold", "value", "version", "guarded")
    RULES = ("currency", "active", "backorder_limit", "low_stock_threshold", "customer_limit", "strategy")

    form = ProductForm
    list_display = (
        "sku", "name", "price", "stock", "reserved", "availability", "counted", "sold", "value", "guarded",
    )  # fmt: skip
    list_filter = (StockFilter, "active", LabFilter)
    search_fields = ("sku", "name")
    search_help_text = _("SKU or name")
    list_per_page = 50
    ordering = ("sku",)
    actions = ("count_products", "move_units")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the products with what there is in all, what must be counted, and what was sold of each."""
        value = ExpressionWrapper(F("on_hand_in_all") * F("price"), output_field=MONEY)
        sold = Sum(F("order_items__quantity") - F("order_items__returned"), default=0)
        products: QuerySet[Any] = in_all(super().get_queryset(request)).annotate(_sold=sold, _value=value)
        return with_count(products)

    class Media:
        css = STYLES

    @admin.display(description=_("on hand"), ordering="on_hand_in_all")
    def stock(self, product: Any) -> int:
        """Return the units there are, in segments too."""
        return int(product.on_hand_in_all)

    @admin.display(description=_("available"), ordering="available_in_all")
    def availability(self, product: Any) -> str:
        """Return the units that may be sold, marked where they are few or none."""
        left, threshold = product.available_in_all, product.low_stock_threshold
        low = threshold is not None and left <= threshold
        return badge("ended" if left <= 0 else "warn" if low else "good", left)

    @admin.display(description=_("in the building"), ordering="in_building")
    def counted(self, product: Any) -> int:
        """Return the units that a physical count must find: sold ones that aren't shipped, too."""
        return int(product.in_building)

    def has_count_permission(self, request: HttpRequest) -> bool:
        """Who may enter a stocktake."""
        return request.user.has_perm("inventory.count_product")

    @admin.action(description=_("Enter a stocktake of the selected products"), permissions=["count"])
    def count_products(self, request: HttpRequest, products: QuerySet[Any]) -> TemplateResponse | None:
        """Ask for the counts, then correct each product's stock; those that can't be are told."""
        if too_many(self, request, products):
            return None
        if must_ask(self, request):
            return self._ask_for_counts(request, products)
        for place in places_of(products):
            self._count(request, place)
        return None

    def _ask_for_counts(self, request: HttpRequest, products: QuerySet[Any]) -> TemplateResponse:
        return ask(
            self,
            request,
            products,
            title=_("Stocktake"),
            text=_(
                "Count every unit in the building, those of orders that aren't shipped yet included. An "
                "empty field leaves the product alone."
            ),
            heads=(_("SKU"), _("name"), _("location"), _("expected"), _("counted")),
            table=[place.as_row(request, COUNTED, MAX_COUNT) for place in places_of(products)],
        )

    def _count(self, request: HttpRequest, place: Place) -> None:
        try:
            counted = number(request, COUNTED + place.key)
            if counted is None:
                return
            made = take_stock(
                place.product,
                counted,
                reason=reason(request),
                reference=request.POST.get("reference", ""),
                location=place.location,
                staff=request.user,
                record=partial(self._log, request, place),
            )
        except CountTooLow as low:
            self.message_user(request, _refusal(low), messages.ERROR)
        except ValueError as error:
            self.message_user(request, f"{place.product}: {error}", messages.ERROR)
        else:
            self._tell(request, place, made)

    def _log(self, request: HttpRequest, place: Place, made: Stocktake) -> None:
        where = f" at {place.location}" if place.location else ""
        said = f"counted {made.counted} of {made.expected}{where}: {made.reason}"
        self.log_change(request, place.product, said)

    def _tell(self, request: HttpRequest, place: Place, made: Stocktake) -> None:
        found = {"sku": place.product.sku, "counted": made.counted, "expected": made.expected}
        text = _("%(sku)s: %(counted)s counted, %(expected)s expected.") % found
        self.message_user(request, text, messages.SUCCESS)

    @admin.display(description=_("sold"), ordering="_sold")
    def sold(self, product: Any) -> int:
        """Return the units in orders."""
        return int(product._sold)

    @admin.display(description=_("value"), ordering="_value")
    def value(self, product: Any) -> Decimal:
        """Return price times units on hand."""
        return Decimal(product._value).quantize(Decimal("0.01"))

    def get_fields(self, request: HttpRequest, obj: Product | None = None) -> tuple[str, ...]:
        """Return what a new product needs, or what there is to know about one."""
        if obj is None:
            return ("sku", "name", "price", *self.RULES, "change_by")
        return (*self.KNOWN, "name", "price", *self.RULES, "change_by", "location", "cause")

    def get_readonly_fields(self, request: HttpRequest, obj: Product | None = None) -> tuple[str, ...]:
        """Let nobody write over stock, nor rename what orders and locks are named after."""
        return () if obj is None else self.KNOWN

    def get_inlines(self, request: HttpRequest, obj: Product | None) -> list[Any]:
        """Show movements where there can be some."""
        return [] if obj is None else [MovementInline]

    def save_model(self, request: HttpRequest, obj: Product, form: Any, change: bool) -> None:
        """Save name and price; bring the stock about by a movement, in the same transaction."""
        quantity = form.cleaned_data.get("change_by") or 0
        if not change:
            made = create_product(
                obj.sku, name=obj.name, price=obj.price, currency=obj.currency, on_hand=quantity
            )
            obj.pk, obj._state.adding = made.pk, False
            obj.save(update_fields=self.RULES)
            return
        if "backorder_limit" in form.changed_data:
            fold([obj])  # units that may be sold beyond the stock lie in other rows, too
            transaction.on_commit(lambda: forget_copies([obj]), robust=True)
        obj.save(update_fields=["name", "price", *self.RULES])
        if quantity:
            cause = f"admin:{request.user.pk}:{form.cleaned_data['cause']}:{uuid4().hex[:12]}"
            kind = Kind.RECEIVED if quantity > 0 else Kind.ADJUSTED
            change_stock(obj, kind, quantity, cause, location=form.cleaned_data.get("location"))


def _refusal(low: CountTooLow) -> str:
    return _(
        "%(sku)s: %(counted)s counted, but at least %(needed)s must be there for what is reserved, or sold "
        "and not shipped. Count again, or cancel orders or release reservations first; nothing was changed."
    ) % {"sku": low.sku, "counted": low.counted, "needed": low.needed}


@admin.register(StockLocation)
class StockLocationAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """Warehouses, in the order in which lines leave from them."""

    list_display = ("code", "name", "priority", "active")
    list_filter = ("active",)
    search_fields = ("code", "name")


@admin.register(StockLevel)
class StockLevelAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """How many units of what are where."""

    list_display = ("product", "location", "units")
    list_filter = ("location",)
    list_select_related = ("product", "location")
    search_fields = ("=product__sku", "=location__code")
    search_help_text = _("SKU or location")
    list_per_page = 50


@admin.register(Stocktake)
class StocktakeAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """What was counted, and what was expected."""

    list_display = (
        "created_at",
        "product",
        "location",
        "counted",
        "expected",
        "reason",
        "staff",
        "reference",
    )
    list_select_related = ("product", "location", "staff")
    search_fields = ("=product__sku", "reason", "=reference")
    search_help_text = _("SKU, reason or reference")
    date_hierarchy = "created_at"
    list_per_page = 50


@admin.register(StockMovement)
class StockMovementAdmin(DeliveryImport, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """The ledger, to be read; deliveries are imported into it."""

    list_display = ("created_at", "product", "kind", "quantity", "shipped", "location", "cause")
    list_filter = ("kind", "created_at")
    list_select_related = ("product", "location")
    search_fields = ("=product__sku", "cause")
    search_help_text = _("SKU or cause")
    date_hierarchy = "created_at"
    list_per_page = 50


@admin.register(StockReservation)
class StockReservationAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """What is promised to whom until when."""

    list_display = ("created_at", "product", "quantity", "customer", "scope", "how", "expires_at", "basket")
    list_filter = ("state", "created_at")
    list_select_related = ("product",)
    search_fields = ("=product__sku", "=basket", "customer", "=scope")
    search_help_text = _("SKU, basket, customer or scope")
    list_per_page = 50
    actions = ("release_baskets",)
    action_form = ReasonForm

    class Media:
        css = STYLES

    def get_queryset(self, request: HttpRequest) -> QuerySet[StockReservation]:
        """Have the database say which are overdue, as it decides for everybody else."""
        rows: QuerySet[StockReservation] = super().get_queryset(request)
        return rows.annotate(overdue=Q(state="live", expires_at__lte=Now()))

    @admin.display(description=_("state"), ordering="state")
    def how(self, row: Any) -> str:
        """Return the state with its shape; a live one whose time is over is free already."""
        if row.overdue:
            return badge("warn", _("overdue"))
        tones = {"live": "open", "used": "good"}
        return badge(tones.get(row.state, "ended"), row.get_state_display())

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Who may change reservations may release them."""
        return request.user.has_perm("inventory.change_stockreservation")

    @admin.action(description=_("Release the selected baskets"), permissions=["release"])
    def release_baskets(self, request: HttpRequest, rows: QuerySet[StockReservation]) -> None:
        """Give the units back, a basket at a time; ended ones are told."""
        for row in rows.order_by("basket").distinct("basket"):
            try:
                said = f"released: {reason(request)}"
                reservations.release(row.basket, record=partial(self.log_change, request, row, said))
            except reservations.ReservationGone as gone:
                self.message_user(request, str(gone), messages.WARNING)
            else:
                self.message_user(request, _("Released %(basket)s.") % {"basket": row.basket})


@admin.register(CustomerPurchase)
class CustomerPurchaseAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """How many units each customer has, bought and reserved."""

    list_display = ("customer", "product", "units", "reserved")
    list_select_related = ("product",)
    search_fields = ("customer", "=product__sku")
    search_help_text = _("Customer or SKU")
    list_per_page = 50
