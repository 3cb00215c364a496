"""What the admin does with orders: each step asks first, uses the services, and says what failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import ModelAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from inventory import Busy, InventoryError, Line, NotThere
from inventory.models import Movement, State
from orders.admin.parts import Choice, Row, ask, must_ask, number, reason, too_many
from orders.after_sale.fulfillment import TooMany, cancel_units, ship, take_back
from orders.after_sale.lifecycle import AlreadyShipped, PaymentTooLate, TransitionRefused, cancel, pay
from orders.after_sale.refunds import TooMuch, owed, refund, refundable
from orders.currencies import is_whole, written
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
    amount: Decimal = Decimal(0)


@dataclass(frozen=True)
class Step:
    """One thing that is done with orders.

    Attributes:
        title: of the page, and of its button. text: what the page explains.
        listed: how the list of orders offers it. permission: of the admin page, that it needs.
        fits: whether the page of an order offers it, by the order and its items.
        verb: for the history.
        perform: does it for an order.
        units: how many of an item it may be about; None where it is about whole orders.
        all_of_them: they are filled in beforehand.
        head: of the column of those numbers.
        choice: what the whole page is asked; its first option is chosen at first.
        money: it is about an amount of each order.
    """

    title: Any
    text: Any
    listed: Any
    permission: str
    fits: Callable[[Order, Sequence[OrderItem]], bool]
    verb: str
    perform: Callable[[Order, Asked], Order]
    units: Callable[[OrderItem], int] | None = None
    all_of_them: bool = False
    head: Any = ""
    choice: Choice | None = None
    money: bool = False


_STARTED = (Order.State.PAID, Order.State.PARTLY_SHIPPED)


def _is_to_ship(order: Order, items: Sequence[OrderItem]) -> bool:
    return order.state in _STARTED and any(item.open for item in items)


PAY = Step(
    _("Mark as paid"),
    _("The money of these orders has come. The reason might be the number of the bank transfer."),
    _("Mark the selected orders as paid"),
    "pay",
    lambda order, items: order.state == Order.State.PLACED,
    "paid",
    lambda order, asked: pay(order.pk, record=asked.record),
)
SHIP = Step(
    _("Ship"),
    _("These units leave the building now. What stays behind can be shipped later."),
    _("Ship units of the selected orders"),
    "ship",
    _is_to_ship,
    "shipped",
    lambda order, asked: ship(order.pk, asked.lines, asked.reference, staff=asked.user, record=asked.record),
    units=lambda item: item.open,
    all_of_them=True,
    head=_("leave now"),
)
TAKE_BACK = Step(
    _("Return"),
    _("These units came back. Their price can be refunded afterwards."),
    _("Take back units of the selected orders"),
    "return",
    lambda order, items: any(item.returnable for item in items),
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
    _("Cancel the rest"),
    _("These units are never shipped. Enter less to keep some; their price can be refunded afterwards."),
    _("Cancel units of the selected orders"),
    "cancel",
    _is_to_ship,
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
    all_of_them=True,
    head=_("never shipped"),
    choice=Choice(
        "fate", _("The units are"), "back", (("back", _("for sale again")), ("lost", _("lost or broken")))
    ),
)
CANCEL = Step(
    _("Cancel the order"),
    _("All units of these orders are for sale again."),
    _("Cancel the selected orders and restock"),
    "cancel",
    lambda order, items: order.state in (Order.State.PLACED, Order.State.PAID),
    "cancelled",
    lambda order, asked: cancel(order.pk, record=asked.record),
)
REFUND = Step(
    _("Refund"),
    _("This money goes back to the customer: the payment provider is asked to transfer it."),
    _("Refund the selected orders"),
    "refund",
    lambda order, items: refundable(order) > 0,
    "refunded",
    lambda order, asked: refund(order.pk, asked.amount, asked.reference, record=asked.record),
    head=_("goes back"),
    money=True,
)

STEPS = {
    "pay_orders": PAY,
    "ship_orders": SHIP,
    "take_back_orders": TAKE_BACK,
    "refund_orders": REFUND,
    "cancel_units_of_orders": CANCEL_UNITS,
    "cancel_orders": CANCEL,
}
"""By the name of the action."""


def action_of(name: str) -> Callable[..., Any]:
    """Return a step as an action of the list of orders."""
    step = STEPS[name]

    def carry(model_admin: Any, request: HttpRequest, orders: QuerySet[Order]) -> TemplateResponse | None:
        return carry_out(model_admin, request, orders, step)

    carry.__name__ = name
    decorate = admin.action(description=step.listed, permissions=[step.permission])
    decorated: Callable[..., Any] = decorate(carry)
    return decorated


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
        whole = (_("order"), _("state"), _("customer"), _("total"))
        return (*whole, _("left to refund"), step.head) if step.money else whole
    known = (_("order"), _("state"), _("product"), _("location"), _("bought"), _("shipped"), _("returned"))
    return (*known, step.head)


def _table(orders: Iterable[Order], step: Step, request: HttpRequest) -> Iterable[Row]:
    places = _places(orders) if step.units else {}
    for order in orders:
        state = order.get_state_display()
        if step.units is None:
            cells = (str(order), state, order.customer, f"{order.total} {order.currency}")
            yield _money(order, cells, request) if step.money else Row(cells)
            continue
        for item in _items(order):
            most = step.units(item)
            value = request.POST.get(_field(item), most if step.all_of_them else 0)
            where = ", ".join(places.get((sale_of(order.pk), item.product.sku), ())) or "–"
            known = (str(order), state, item.product, where, item.quantity, item.shipped, item.returned)
            yield Row(known, _field(item), value, most)


def _money(order: Order, cells: tuple[Any, ...], request: HttpRequest) -> Row:
    left, field = refundable(order), _amount_field(order)
    value = request.POST.get(field, written(owed(order), order.currency))
    step = "1" if is_whole(order.currency) else "0.01"
    return Row((*cells, left), field, value, written(left, order.currency), step)


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


def _amount_field(order: Order) -> str:
    return f"amount-{order.pk}"


def _amount(request: HttpRequest, order: Order) -> Decimal:
    text = request.POST.get(_amount_field(order), "").strip() or "0"
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(_("%(text)s is not an amount.") % {"text": repr(text[:40])}) from None


def _carry_out_one(model_admin: ModelAdmin[Any], request: HttpRequest, order: Order, step: Step) -> None:
    try:
        lines = _lines(request, order) if step.units else []
        amount = _amount(request, order) if step.money else Decimal(0)
        if (step.units and not lines) or (step.money and not amount):
            return  # nothing was filled in for this one
        units = f" {amount} {order.currency}," if step.money else ""
        units += "".join(f" {line.quantity} × {line.sku}," for line in lines)
        chosen = request.POST.get(step.choice.name, "") if step.choice else ""
        said = f"{step.verb}:{units} {chosen} {reason(request)}"
        # The history says what was done, in its transaction: nothing of a page that is sent again.
        record = partial(model_admin.log_change, request, order, " ".join(said.split()))
        asked = Asked(lines, request.POST.get("reference", ""), request.user, chosen, record, amount)
        after = step.perform(order, asked)
    except Refusals as refused:
        model_admin.message_user(request, tell(order, refused), messages.ERROR)
        return
    facts = {"order": str(order), "state": Order.State(after.state).label}
    text = _("Order %(order)s: refunded.") if step.money else _("Order %(order)s is %(state)s.")
    model_admin.message_user(request, text % facts, messages.SUCCESS)


def _lines(request: HttpRequest, order: Order) -> list[Line]:
    given = [(item, number(request, _field(item))) for item in _items(order)]
    return [Line(item.product.sku, units) for item, units in given if units]


# Django writes the first letter of a message large, so none begins with what is written as it is.
_TEXTS: dict[type[Exception], Any] = {
    PaymentTooLate: _("Order %(order)s is %(state)s: the payment came too late. Give the money back."),
    AlreadyShipped: _("Order %(order)s is %(state)s: its units can be returned, not cancelled."),
    TransitionRefused: _("Order %(order)s is %(state)s, so this can't be done; nothing was changed."),
    Busy: _("Order %(order)s or its stock is locked; nothing was changed. Try again."),
    TooMany: _(
        "Order %(order)s: %(wanted)s × %(sku)s are too many, only %(open)s can be; nothing was changed."
    ),
    TooMuch: _(
        "Order %(order)s: %(amount)s %(currency)s can't be refunded, at most %(left)s can be; nothing was "
        "changed."
    ),
    NotThere: _(
        "Order %(order)s: %(requested)s × %(sku)s can't leave, only %(there)s are there. Move or count stock "
        "first; nothing was changed."
    ),
}


def tell(order: Order, refused: Exception) -> str:
    """Return the text of a refusal, in the user's language."""
    text = _TEXTS.get(type(refused), _("Order %(order)s: %(why)s"))
    facts = vars(refused) | {"order": str(order), "why": refused}
    if "state" in facts:
        facts["state"] = Order.State(facts["state"]).label
    return str(text % facts)
