"""The shop with what is around it: repeated webhooks, extensions, dying relays; the totals agree.

`HOLDFAST_STEPS=10000 pytest tests/orders/test_connected_shop_machine.py` takes so many steps.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db.models.functions import Now
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, rule, run_state_machine_as_test

from inventory import ReservationGone
from inventory.hooks import installed
from orders.after_sale import payments
from orders.after_sale.payments import Payment
from orders.events import relay
from orders.events.signals import SIGNALS
from orders.models import OrderEvent, PaymentEvent
from orders.selling import reservations
from tests.orders.test_shop_machine import LONG_ENOUGH, TEN_MINUTES, Shop, at_two_lengths, run_steps

SINCE_PAID = ("paid", "partly_shipped", "shipped", "returned")


class Dead(BaseException):
    """The relay's process ended here."""


class ConnectedShop(Shop):
    """The shop, its payment provider and what hears its events."""

    baskets = Bundle("baskets")
    orders = Bundle("orders")

    def __init__(self) -> None:
        super().__init__()
        self.received: dict[str, str] = {}
        self.heard: list[tuple[int, str]] = []
        for signal in SIGNALS.values():
            signal.connect(self.hear)

    def hear(self, sender, event, **kwargs):
        """Write down an event that was delivered."""
        self.heard.append((event.pk, event.kind))

    @rule(order=orders, wrong=st.sampled_from(["", "amount", "currency"]), times=st.integers(1, 3))
    def webhook(self, order, wrong, times):
        """An event does something the first time only, and what it does is what the order's state allows."""
        event_id = f"evt_{order}_{wrong}"
        total, money = self.totals[order]
        amount = int(total * 100) + (wrong == "amount")
        currency = "chf" if wrong == "currency" else money.lower()
        for _ in range(times):
            known = event_id in self.received
            if not known:
                self.received[event_id] = self.outcome(order, wrong)
            notice = Payment(
                event_id, "payment_intent.succeeded", order, f"pi_{order}_{wrong}", amount, currency
            )
            event, repeated = payments.receive(notice)
            assert (event.outcome, repeated) == (self.received[event_id], known)

    def outcome(self, order, wrong):
        """Return what the shopkeeper would say of a payment, and write down what it does."""
        if wrong:
            return f"wrong_{wrong}"
        if self.states[order] in SINCE_PAID:
            return "already_paid"
        if self.states[order] == "placed" and order not in self.overdue:
            self.states[order] = "paid"
            return "paid"
        if self.states[order] == "placed":
            self.end(order, "expired")
        return "too_late"

    @rule(basket=baskets)
    def extend(self, basket):
        """What is still reserved lasts longer; what has ended doesn't come back."""
        if not self.promises[basket] or basket in self.late:
            with pytest.raises(ReservationGone):
                reservations.extend(basket, TEN_MINUTES)
        else:
            assert reservations.extend(basket, TEN_MINUTES).state == "live"

    @rule(dies=st.sampled_from(["never", "claimed", "delivered"]))
    def relay_events(self, dies):
        """A relay works, and may die before or after it has delivered; later its claim ends."""

        def hook(name, /, **facts):
            if name == dies:
                raise Dead

        with installed(hook), suppress(Dead):
            relay.relay()
        OrderEvent.objects.filter(delivered_at=None).update(due_at=Now())

    def teardown(self):
        """Whatever died, every event was delivered, in order within each order."""
        relay.relay_all()
        for order in self.states:
            written = list(OrderEvent.objects.filter(order=order).order_by("pk").values_list("pk", "kind"))
            assert written[0][1] == "placed"
            assert [event for event in dict.fromkeys(self.heard) if event in written] == written
        for signal in SIGNALS.values():
            signal.disconnect(self.hear)


@pytest.mark.timeout(LONG_ENOUGH)
@pytest.mark.django_db(transaction=True)
@at_two_lengths
def test_the_connected_shop_keeps_its_books_and_tells_of_everything(capsys, examples):
    """All that the shop does, with the audit after each step, and every event delivered in the end."""
    steps = run_steps(ConnectedShop, examples)
    with capsys.disabled():
        print(f"\nsteps of the connected shop, each audited: {steps}")


def forget_the_event(payment, outcome):
    """Answer an event without keeping a record of it."""
    return PaymentEvent(event_id=payment.event_id, kind=payment.kind, outcome=outcome)


@pytest.mark.timeout(LONG_ENOUGH)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("orders.after_sale.payments._record", forget_the_event),
        ("orders.after_sale.lifecycle.publish", lambda *args, **kwargs: None),
        ("orders.events.relay._CLAIM", relay._CLAIM.replace("RETURNING event.id", "RETURNING NULL::bigint")),
    ],
    ids=["events are not remembered", "changes are not published", "claims are not delivered"],
)
def test_the_machine_catches_a_shop_that_forgets(monkeypatch, name, broken):
    """Each of the three is found."""
    monkeypatch.setattr(name, broken)
    hurried = settings(max_examples=10, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_state_machine_as_test(ConnectedShop, settings=hurried)
