"""What the admin does with orders: each action asks first, uses the services, and tells what failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from inventory.admin_parts import Row, ask, must_ask, number, reason, too_many
from inventory.domain import Busy, Line
from inventory.locations import NotThere
from orders.fulfillment import TooMany, TooManyReturned, TooManyShipped, ship, take_back
from orders.lifecycle import AlreadyShipped, OrderUnknown, PaymentTooLate, TransitionRefused, pay
from orders.models import Order, OrderItem

Record = Callable[[], object]
Perform = Callable[[Order, Sequence[Line], str, Any, Record], Order]


@dataclass(frozen=True)
class Step:
    """One thing that is done with orders.

    Attributes:
        title: of the page, and of its button. text: what the page explains.
        verb: for the history.
        perform: does it for an order, given lines, reference, user, and what writes the history.
        units: how many of an item it may be about; None where it is about whole orders.
        all_of_them: they are filled in beforehand.
        head: of the column of those numbers.
    """

    title: Any
    text: Any
    verb: str
    perform: Perform
    units: Callable[[OrderItem], int] | None = None
    all_of_them: bool = False
    head: Any = ""


PAY = Step(
    _("Mark as paid"),
    _("The money of these orders has come. The reason might be the number of the bank transfer."),
    "paid",
    lambda order, lines, reference, user, record: pay(order.pk, record=record),
)
SHIP = Step(
    _("Ship"),
    _("These units leave the building now. What stays behind can be shipped later."),
    "shipped",
    lambda order, lines, reference, user, record: ship(order.pk, lines, reference, staff=user, record=record),
    units=lambda item: item.allocated,
    all_of_them=True,
    head=_("leave now"),
)
TAKE_BACK = Step(
    _("Take back"),
    _("These units came back and are for sale again. Paying back is not done here."),
    "returned",
    lambda order, lines, reference, user, record: take_back(order.pk, lines, reference, record=record),
    units=lambda item: item.returnable,
    head=_("came back"),
)

Refusals = (TransitionRefused, TooMany, OrderUnknown, Busy, ValueError)


def carry_out(
    model_admin: ModelAdmin[Any], request: HttpRequest, orders: QuerySet[Order], step: Step
) -> TemplateResponse | None:
    """Ask about the chosen orders; once confirmed, do it for each and tell what came of it."""
    if too_many(model_admin, request, orders):
        return None
    chosen = Order.objects.filter(pk__in=list(orders.values_list("pk", flat=True))).order_by("created_at")
    if must_ask(model_admin, request):
        return ask(
            model_admin,
            request,
            chosen,
            title=step.title,
            text=step.text,
            heads=_heads(step),
            table=list(_table(chosen, step, request)),
        )
    for order in chosen:
        _carry_out_one(model_admin, request, order, step)
    return None


def _heads(step: Step) -> tuple[Any, ...]:
    if step.units is None:
        return (_("order"), _("state"), _("customer"), _("total"))
    known = (_("order"), _("state"), _("product"), _("location"), _("bought"), _("shipped"), _("returned"))
    return (*known, step.head)


def _table(orders: Iterable[Order], step: Step, request: HttpRequest) -> Iterable[Row]:
    for order in orders:
        state = order.get_state_display()
        if step.units is None:
            yield Row((order.pk, state, order.customer, order.total))
            continue
        for item in _items(order):
            most = step.units(item)
            value = request.POST.get(_field(item), most if step.all_of_them else 0)
            where = item.location or "–"
            cells = (order.pk, state, item.product, where, item.quantity, item.shipped, item.returned)
            yield Row(cells, _field(item), value, most)


def _items(order: Order) -> QuerySet[OrderItem]:
    return order.items.select_related("product", "location")


def _field(item: OrderItem) -> str:
    return f"units-{item.pk}"


def _carry_out_one(model_admin: ModelAdmin[Any], request: HttpRequest, order: Order, step: Step) -> None:
    try:
        lines = _lines(request, order) if step.units else []
        if step.units and not lines:
            return  # nothing was filled in for this one
        units = "".join(f" {line.quantity} × {line.sku}," for line in lines)
        # The history says what was done, in its transaction: nothing of a page that is sent again.
        record = partial(model_admin.log_change, request, order, f"{step.verb}:{units} {reason(request)}")
        after = step.perform(order, lines, request.POST.get("reference", ""), request.user, record)
    except Refusals as refused:
        model_admin.message_user(request, tell(order, refused), messages.ERROR)
        return
    told = {"order": order.pk, "state": Order.State(after.state).label}
    model_admin.message_user(request, _("%(order)s is %(state)s.") % told, messages.SUCCESS)


def _lines(request: HttpRequest, order: Order) -> list[Line]:
    given = [(item, number(request, _field(item))) for item in _items(order)]
    return [Line(item.product.sku, units) for item, units in given if units]


_TEXTS: dict[type[Exception], Any] = {
    PaymentTooLate: _("%(order)s is %(state)s: the payment came too late. Give the money back."),
    AlreadyShipped: _("%(order)s is %(state)s: its units can be returned, not cancelled."),
    TransitionRefused: _("%(order)s is %(state)s, so this can't be done; nothing was changed."),
    Busy: _("%(order)s or its stock is locked by somebody else; nothing was changed. Try again."),
    TooManyShipped: _("%(sku)s of %(order)s: %(wanted)s can't leave, only %(open)s are still here."),
    NotThere: _(
        "%(sku)s of %(order)s: %(wanted)s can't leave from there, only %(there)s are there. Move or count "
        "stock first; nothing was changed."
    ),
    TooManyReturned: _("%(sku)s of %(order)s: %(wanted)s can't come back, only %(open)s are out."),
}


def tell(order: Order, refused: Exception) -> str:
    """Return what to tell about a refusal, in the user's language."""
    text = _TEXTS.get(type(refused))
    if text is None:
        return f"{order.pk}: {refused}"
    facts = vars(refused) | {"order": order.pk}
    if "state" in facts:
        facts["state"] = Order.State(facts["state"]).label
    return str(text % facts)
