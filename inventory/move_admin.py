"""Moving units between locations in the admin: choose products, fill in how many, say where to and why."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from inventory.admin_parts import Choice, ask, must_ask, number, reason, too_many
from inventory.admin_places import Place, places_of
from inventory.locations import NotThere, move_stock
from inventory.models import StockLocation

MOVED: Final = "move-"
"""The fields for units are called so, and by their place."""


class MovingUnits:
    """The action for the admin of products."""

    def has_move_permission(self, request: HttpRequest) -> bool:
        """Who may move units."""
        return request.user.has_perm("inventory.move_product")

    @admin.action(
        description=_("Move units of the selected products to another location"), permissions=["move"]
    )
    def move_units(self: Any, request: HttpRequest, products: QuerySet[Any]) -> TemplateResponse | None:
        """Ask how many and where to, then move them; what can't be moved is told, and stays where it is."""
        if too_many(self, request, products):
            return None
        if must_ask(self, request):
            return _ask(self, request, products)
        code = request.POST.get("target", "")
        target = StockLocation.objects.filter(code=code).first()
        if code and target is None:
            text = _("There is no location %(code)s; choose one of the list.") % {"code": repr(code[:64])}
            self.message_user(request, text, messages.ERROR)
            return _ask(self, request, products)
        for place in places_of(products):
            _move(self, request, place, target)
        return None


def _ask(model_admin: Any, request: HttpRequest, products: QuerySet[Any]) -> TemplateResponse:
    codes = StockLocation.objects.values_list("code", flat=True)
    chosen = request.POST.get("target", "")
    return ask(
        model_admin,
        request,
        products,
        title=_("Move units"),
        text=_(
            "Fill in how many units leave each location. What is for sale does not change. An empty field "
            "leaves its units where they are."
        ),
        heads=(_("SKU"), _("name"), _("location"), _("units"), _("to be moved")),
        table=[place.as_row(request, MOVED, max(0, place.units)) for place in places_of(products)],
        choice=Choice("target", _("To location"), chosen, [("", "–"), *((code, code) for code in codes)]),
    )


def _move(model_admin: Any, request: HttpRequest, place: Place, target: StockLocation | None) -> None:
    """Move what one field says, and tell what came of it."""
    where = {"sku": place.product.sku, "source": place.location or "–", "target": target or "–"}
    reference = f"{request.POST.get('reference', '')[:40]}-{place.location or ''}"
    try:
        units = number(request, MOVED + place.key)
        if not units:
            return
        if place.location == target:
            raise ValueError(_("units are at %(target)s already; choose another location") % where)
        with transaction.atomic():  # the history is committed with what it tells of
            if move_stock(place.product, units, place.location, target, reference):
                said = f"moved {units} from {where['source']} to {where['target']}: {reason(request)}"
                model_admin.log_change(request, place.product, said)
    except NotThere as missing:
        text = _("%(sku)s: only %(there)s are at %(source)s; nothing of it was moved.")
        model_admin.message_user(request, text % {**where, "there": missing.there}, messages.ERROR)
    except ValueError as error:
        model_admin.message_user(request, f"{place.product}: {error}", messages.ERROR)
    else:
        text = _("%(sku)s: %(units)s moved from %(source)s to %(target)s.")
        model_admin.message_user(request, text % {**where, "units": units}, messages.SUCCESS)
