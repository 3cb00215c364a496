"""What happened to an order, the oldest first: what the shop published, who of the staff did it and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.utils.translation import gettext_lazy as _

from orders.admin.events import delivery
from orders.models import Order, OrderEvent, PaymentEvent


@dataclass(frozen=True, slots=True)
class Happened:
    """One line: when, what, its particulars, and how far its delivery is."""

    at: datetime
    what: Any
    text: str = ""
    delivery: str = ""


def timeline(order: Order) -> list[Happened]:
    """Return everything that is kept about an order; what was published is forgotten after a while."""
    published = OrderEvent.objects.filter(order=order).order_by("pk")
    lines = [
        Happened(each.created_at, each.get_kind_display(), _particulars(each), delivery(each))
        for each in published
    ]
    kinds = {each.kind for each in published}
    if OrderEvent.Kind.PLACED not in kinds:
        lines.append(Happened(order.created_at, OrderEvent.Kind.PLACED.label))
    if order.paid_at and OrderEvent.Kind.PAID not in kinds:
        lines.append(Happened(order.paid_at, OrderEvent.Kind.PAID.label))
    provider = PaymentEvent.objects.filter(order=order)
    lines += [
        Happened(each.received_at, _("payment provider"), f"{each.get_outcome_display()}: {each.reference}")
        for each in provider
    ]
    kind = ContentType.objects.get_for_model(Order)
    notes = LogEntry.objects.filter(content_type=kind, object_id=str(order.pk)).select_related("user")
    lines += [Happened(each.action_time, each.user, each.get_change_message()) for each in notes]
    return sorted(lines, key=lambda line: line.at)


def _particulars(event: OrderEvent) -> str:
    """Return what belongs to an event in one line: units, an amount, its reference."""
    data = event.data
    units = [f"{line['quantity']} × {line['sku']}" for line in data.get("lines", ())]
    money = [f"{data['amount']} {data['currency']}"] if "amount" in data else []
    named = [str(data[name]) for name in ("reason", "payment", "reference") if name in data]
    return ", ".join([*units, *money, *named])
