"""What the admin does with orders: each action asks first, uses the services, and says what failed."""

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

from inventory import Busy, InventoryError, Line, NotThere
from inventory.models import Movement, State
from orders.admin.parts import Choice, Row, ask, must_ask, number, reason, too_many
from orders.after_sale.fulfillment import TooMany, cancel_units, ship, take_back
from orders.after_sale.lifecycle import AlreadyShipped, PaymentTooLate, TransitionRefused, pay
from orders.models import Order, OrderItem
from orders.selling.refusals import Refused
from orders.selling.writing import sale_of


@dataclass(frozen=True)
class Asked:
    """What was filled in about one order."""

    lines: Sequence[Line]
    reference: str
    user: Any
    chosen: str
    record: Callable[[], object]


@dataclass(frozen=True)
class Step:
    """One thing that is done with orders.

    Attributes:
        title: of the page, and of its button. text: what the page explains.
        verb: for the history.
        perform: does it for an order.
        units: how many of an item it may be about; None where it is about whole orders.
        all_of_them: they are filled in beforehand.
        head: of the column of those numbers.
        choice: what the whole page is asked; its first option is chosen at first.
    """

    title: Any
    text: Any
    verb: str
    perform: Callable[[Order, Asked], Order]
    units: Callable[[OrderItem], int] | None = None
    all_of_them: bool = False
    head: Any = ""
    choice: Choice | None = None


PAY = Step(
    _("Mark as paid"),
    _("The money of these orders has come. The reason might be the number of the bank transfer."),
    "paid",
    lambda order, asked: pay(order.pk, record=asked.record),
)
SHIP = Step(
    _("Ship"),
    _("These units leave the building now. What stays behind can be shipped later."),
    "shipped",
    lambda order, asked: ship(order.pk, asked.lines, asked.reference, staff=asked.user, record=asked.record),
    units=lambda item: item.open,
    all_of_them=True,
    head=_("leave now"),
)
TAKE_BACK = Step(
    _("Take back"),
    _("These units came back. Paying back is not done here."),
    "returned",
    lambda order, asked: take_back(
        order.pk,
        asked.lines,
        asked.reference,
        damaged=asked.chosen == "damaged",
        staff=asked.user,
        record=asked.record,
    ),
    units=lambda item: item.returnable,
    head=_("came back"),
    choice=Choice(
        "condition", _("Condition"), "good", (("good", _("for sale again")), ("damaged", _("damaged")))
    ),
)
CANCEL_UNITS = Step(
    _("Cancel units"),
    _("These units of the orders are never shipped. Paying back is not done here."),
    "cancelled",
    lambda order, asked: cancel_units(
        order.pk,
        asked.lines,
        asked.reference,
        lost=asked.chosen == "lost",
        staff=asked.user,
        record=asked.record,
    ),
    units=lambda item: item.open,
    head=_("never shipped"),
    choice=Choice(
        "fate", _("The units are"), "back", (("back", _("for sale again")), ("lost", _("lost or broken")))
    ),
)

Refusals = (Refused, InventoryError, ValueError)


def carry_out(
    model_admin: ModelAdmin[Any], request: HttpRequest, orders: QuerySet[Order], step: Step
) -> TemplateResponse | None:
    """Ask about the chosen orders; once confirmed, do it for each and say what came of it."""
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
            choice=step.choice,
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
    places = _places(orders) if step.units else {}
    for order in orders:
        state = order.get_state_display()
        if step.units is None:
            yield Row((order.pk, state, order.customer, order.total))
            continue
        for item in _items(order):
            most = step.units(item)
            value = request.POST.get(_field(item), most if step.all_of_them else 0)
            where = ", ".join(places.get((sale_of(order.pk), item.product.sku), ())) or "–"
            cells = (order.pk, state, item.product, where, item.quantity, item.shipped, item.returned)
            yield Row(cells, _field(item), value, most)


def _places(orders: Iterable[Order]) -> dict[tuple[str, str], list[str]]:
    """Return where units were sold from, by the cause of the sale and the SKU; one query."""
    sold = Movement.objects.filter(
        entry__cause__in=[sale_of(order.pk) for order in orders], target=State.COMMITTED
    )
    found: dict[tuple[str, str], list[str]] = {}
    for cause, sku, code in sold.values_list("entry__cause", "level__item__sku", "level__location__code"):
        found.setdefault((cause, sku), []).append(code)
    return found


def _items(order: Order) -> QuerySet[OrderItem]:
    return order.items.select_related("product")


def _field(item: OrderItem) -> str:
    return f"units-{item.pk}"


def _carry_out_one(model_admin: ModelAdmin[Any], request: HttpRequest, order: Order, step: Step) -> None:
    try:
        lines = _lines(request, order) if step.units else []
        if step.units and not lines:
            return  # nothing was filled in for this one
        units = "".join(f" {line.quantity} × {line.sku}," for line in lines)
        chosen = request.POST.get(step.choice.name, "") if step.choice else ""
        said = f"{step.verb}:{units} {chosen} {reason(request)}"
        # The history says what was done, in its transaction: nothing of a page that is sent again.
        record = partial(model_admin.log_change, request, order, " ".join(said.split()))
        asked = Asked(lines, request.POST.get("reference", ""), request.user, chosen, record)
        after = step.perform(order, asked)
    except Refusals as refused:
        model_admin.message_user(request, tell(order, refused), messages.ERROR)
        return
    facts = {"order": order.pk, "state": Order.State(after.state).label}
    model_admin.message_user(request, _("%(order)s is %(state)s.") % facts, messages.SUCCESS)


def _lines(request: HttpRequest, order: Order) -> list[Line]:
    given = [(item, number(request, _field(item))) for item in _items(order)]
    return [Line(item.product.sku, units) for item, units in given if units]


_TEXTS: dict[type[Exception], Any] = {
    PaymentTooLate: _("%(order)s is %(state)s: the payment came too late. Give the money back."),
    AlreadyShipped: _("%(order)s is %(state)s: its units can be returned, not cancelled."),
    TransitionRefused: _("%(order)s is %(state)s, so this can't be done; nothing was changed."),
    Busy: _("%(order)s or its stock is locked; nothing was changed. Try again."),
    TooMany: _("%(sku)s of %(order)s: %(wanted)s are too many, only %(open)s can be; nothing was changed."),
    NotThere: _(
        "%(sku)s of %(order)s: %(requested)s can't leave, only %(there)s are there. Move or count stock "
        "first; nothing was changed."
    ),
}


def tell(order: Order, refused: Exception) -> str:
    """Return the text of a refusal, in the user's language."""
    text = _TEXTS.get(type(refused))
    if text is None:
        return f"{order.pk}: {refused}"
    facts = vars(refused) | {"order": order.pk}
    if "state" in facts:
        facts["state"] = Order.State(facts["state"]).label
    return str(text % facts)
