"""Events of orders: one per change, in its transaction; delivered at least once, in order per order."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory import Line, SoldOut
from inventory.hooks import installed
from inventory.models import Reservation
from orders import tasks
from orders.after_sale import fulfillment, lifecycle
from orders.catalog.low_stock import notice_low_stock
from orders.events import relay
from orders.events.outbox import publish
from orders.events.signals import SIGNALS, back_in_stock, low_stock, order_paid, order_placed
from orders.models import Order, OrderEvent, Product
from orders.selling.checkout import checkout, checkout_reserved
from orders.selling.refusals import RepeatedKey
from orders.selling.reservations import release, reserve
from orders.selling.strategies import names
from orders.selling.writing import ClientKey
from tests.factories import OrderFactory, ProductFactory
from tests.lab.interleaving import buyers, eventually
from tests.orders.mortal import database_is_idle, mortals
from tests.orders.shelf import receive
from tests.support.warm import WarmProcess

pytestmark = pytest.mark.django_db(transaction=True)
Kind = OrderEvent.Kind


class Dead(BaseException):
    """The relay's process ended here."""


@pytest.fixture
def heard() -> Iterator[list[tuple[int, str]]]:
    """What receivers got, as (event id, kind)."""
    events: list[tuple[int, str]] = []

    def hear(sender, event, **about):
        assert sender is OrderEvent
        assert about.get("order", about.get("product")) in (event.order, event.product)
        events.append((event.pk, event.kind))

    for each in SIGNALS.values():
        each.connect(hear)
    yield events
    for each in SIGNALS.values():
        each.disconnect(hear)


def kinds(order: Order) -> list[str]:
    """Return the kinds of an order's events in their order."""
    return list(OrderEvent.objects.filter(order=order).order_by("pk").values_list("kind", flat=True))


def let_claims_end() -> None:
    """Let the time of every claim and every pause be over."""
    OrderEvent.objects.filter(delivered_at=None).update(due_at=Now())


def overdue(order: Order) -> Order:
    """Let the payment window of `order` be over."""
    Order.objects.filter(pk=order.pk).update(pay_by=Now() - timedelta(seconds=1))
    return order


# What is published ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", names())
def test_every_strategy_publishes_the_order(strategy):
    """One `placed` event per order, whichever way it was sold."""
    assert kinds(OrderFactory.create(strategy=strategy)) == ["placed"]


def test_a_bought_reservation_publishes_the_order():
    """So does a checkout of a reservation."""
    sku = ProductFactory.create().sku
    assert kinds(checkout_reserved(reserve([Line(sku, 1)], timedelta(minutes=1)).id).order) == ["placed"]


@pytest.mark.parametrize(
    ("steps", "published"),
    [
        ([lifecycle.pay], ["placed", "paid"]),
        ([lifecycle.pay, lifecycle.pay], ["placed", "paid"]),
        ([lifecycle.cancel, lifecycle.cancel], ["placed", "cancelled"]),
        ([lifecycle.pay, lifecycle.cancel], ["placed", "paid", "cancelled"]),
    ],
)
def test_a_change_publishes_one_event(steps, published):
    """Each change of state is one event; a step that changes nothing publishes nothing."""
    order = OrderFactory.create()
    for step in steps:
        step(order.pk)
    assert kinds(order) == published


def test_an_expiry_is_published_whoever_notices_it():
    """By the sweep, or by a payment that comes too late."""
    swept, paid_late = overdue(OrderFactory.create()), overdue(OrderFactory.create())
    with pytest.raises(lifecycle.PaymentTooLate):
        lifecycle.pay(paid_late.pk)
    tasks.expire_orders()
    assert kinds(swept) == kinds(paid_late) == ["placed", "expired"]


def test_a_return_is_published_with_its_lines_once():
    """The same parcel again publishes nothing, on its way out as on its way back."""
    order = OrderFactory.create(lines=[Line(ProductFactory.create(sku="mug").sku, 2)])
    lifecycle.pay(order.pk)
    for _ in range(2):
        fulfillment.ship(order.pk, None, "parcel-6")
    for _ in range(2):
        fulfillment.take_back(order.pk, [Line("mug", 1)], "parcel-7")
    assert kinds(order) == ["placed", "paid", "shipped", "returned"]
    shipped, returned = (OrderEvent.objects.get(kind=kind).data for kind in (Kind.SHIPPED, Kind.RETURNED))
    assert shipped == {"reference": "parcel-6", "lines": [{"sku": "mug", "quantity": 2}]}
    assert returned == {"reference": "parcel-7", "lines": [{"sku": "mug", "quantity": 1}]}


@pytest.mark.parametrize("strategy", names())
def test_what_is_not_ordered_is_not_published(strategy):
    """Neither a refusal nor a repeated key writes an event."""
    ProductFactory.create(sku="mug", on_hand=2)
    buy = partial(checkout, [Line("mug", 1)], strategy, key=ClientKey("", "k", "f"))
    buy()
    with pytest.raises(RepeatedKey):
        buy()
    with pytest.raises(SoldOut):
        checkout([Line("mug", 5)], strategy)
    assert OrderEvent.objects.count() == 1


def test_a_change_that_is_rolled_back_publishes_nothing():
    """The event ends with the transaction in which it was written."""
    order = OrderFactory.create()
    with buyers() as start:
        start("customer", partial(lifecycle.pay, order.pk), "written").reaches("written").dies()
    assert kinds(order) == ["placed"]


@pytest.mark.parametrize("strategy", ["conditional_update", "combined"])
def test_the_event_costs_the_checkout_no_statement(strategy):
    """It is written by the statement that writes the order."""
    sku = ProductFactory.create().sku
    with CaptureQueriesContext(connection) as queries:
        checkout([Line(sku, 1)], strategy)
    writing = [query["sql"] for query in queries if "orders_orderevent" in query["sql"]]
    assert len(writing) == 1
    assert "INSERT INTO orders_order " in writing[0]


def test_an_event_outside_a_transaction_is_refused():
    """It could be delivered for a change that never happens."""
    order = OrderFactory.create()
    with pytest.raises(transaction.TransactionManagementError, match="outside a transaction"):
        publish(Kind.SHIPPED, order=order.pk)
    with transaction.atomic():
        publish(Kind.SHIPPED, order=order.pk, lines=[])
    assert kinds(order) == ["placed", "shipped"]


# Delivery ---------------------------------------------------------------------------------------------------


def test_events_are_delivered_once_while_nothing_fails(heard):
    """Each receiver gets each event, in order within one order; the second run has nothing to do."""
    order = OrderFactory.create()
    lifecycle.pay(order.pk)
    lifecycle.cancel(order.pk)
    assert (tasks.relay_events(), tasks.relay_events()) == (3, 0)
    assert [kind for _, kind in heard] == ["placed", "paid", "cancelled"]
    assert not OrderEvent.objects.filter(delivered_at=None).exists()


def test_a_relay_inside_a_transaction_is_refused(heard):
    """Its rollback would take back the claim, and what receivers have written."""
    OrderFactory.create()
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        relay.relay()
    assert heard == []


def test_a_process_that_dies_after_the_commit_loses_no_event(heard):
    """The buyer's process is killed between COMMIT and everything after it; the relay delivers."""
    sku = ProductFactory.create().sku
    with mortals() as warm:
        assert warm.buy("conditional_update", sku, 1, "committed") == "killed"
    eventually(database_is_idle, "PostgreSQL has noticed the death")
    relay.relay_all()
    assert [kind for _, kind in heard] == ["placed"]


RELAY = """
import os, signal, sys
from inventory.hooks import installed
from orders.events.relay import relay
from orders.events.signals import order_placed

def hear(sender, event, order, **kwargs):
    print(event.pk, flush=True)

order_placed.connect(hear)
with installed(lambda name, **facts: name == sys.argv[1] and os.kill(os.getpid(), signal.SIGKILL)):
    relay()
"""


@pytest.mark.parametrize(("stop", "deliveries"), [("claimed", 0), ("delivered", 1)])
def test_a_relay_that_is_killed_delivers_again(heard, stop, deliveries):
    """Killed before the delivery, or between delivery and mark: the event comes again, with the same id."""
    OrderFactory.create()
    killed = WarmProcess(["-c", RELAY, stop], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, complaint = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, complaint
    event = OrderEvent.objects.get()
    assert [int(line) for line in said.split()] == [event.pk] * deliveries
    assert relay.relay_all() == 0, "its claim has not ended yet"
    let_claims_end()
    relay.relay_all()
    assert heard == [(event.pk, "placed")]


def relay_while_one_event_kills(fatal: Order) -> None:
    """Run relays, each of which dies of the event of one order, and let a minute pass after each."""

    def die(sender, event, order, **kwargs):
        if order.pk == fatal.pk:
            raise Dead

    order_placed.connect(die)
    try:
        for _ in range(4):
            for _ in range(2):
                with contextlib.suppress(Dead):
                    relay.relay_all()
            OrderEvent.objects.filter(delivered_at=None).update(due_at=F("due_at") - timedelta(seconds=61))
    finally:
        order_placed.disconnect(die)


def test_an_event_that_kills_its_relay_holds_up_no_other_order(heard):
    """The last claim's events come one at a time: those behind the fatal one are delivered."""
    fatal, other = OrderFactory.create(), OrderFactory.create()
    relay_while_one_event_kills(fatal)
    waiting = OrderEvent.objects.filter(delivered_at=None)
    assert [event.order_id for event in waiting] == [fatal.pk]
    assert (OrderEvent.objects.get(order=other).pk, "placed") in heard


def test_an_event_that_failed_before_it_kills_is_alone_too(heard):
    """The error of its first attempt doesn't make its last claim an answered one."""
    fatal = OrderFactory.create()
    fail_once(fatal)
    let_claims_end()
    other = die_of_it_then_place_another(fatal)
    assert OrderEvent.objects.get(order=other).delivered_at is not None
    assert [event.order_id for event in OrderEvent.objects.filter(delivered_at=None)] == [fatal.pk]


def test_mutant_that_keeps_the_error_in_a_claim(heard, monkeypatch):
    """With it the fatal event is claimed with the newer ones, which wait for each death of a relay."""
    monkeypatch.setattr(relay, "_CLAIM", relay._CLAIM.replace(", error = ''\n", "\n"))
    fatal = OrderFactory.create()
    fail_once(fatal)
    let_claims_end()
    other = die_of_it_then_place_another(fatal)
    assert OrderEvent.objects.get(order=other).delivered_at is None


def fail_once(order: Order) -> None:
    """Have the first attempt at the order's event raise."""

    def fail(sender, event, **kwargs):
        if event.order_id == order.pk:
            raise RuntimeError("no mail server")

    order_placed.connect(fail)
    try:
        relay.relay_all()
    finally:
        order_placed.disconnect(fail)
    assert "no mail server" in OrderEvent.objects.get(order=order).error


def die_of_it_then_place_another(fatal: Order) -> Order:
    """Let a relay die of the order's event, place another order when its claim has ended, and relay twice."""

    def die(sender, event, **kwargs):
        if event.order_id == fatal.pk:
            raise Dead

    order_placed.connect(die)
    try:
        with contextlib.suppress(Dead):
            relay.relay_all()
        let_claims_end()
        other: Order = OrderFactory.create()
        for _ in range(2):
            with contextlib.suppress(Dead):
                relay.relay_all()
    finally:
        order_placed.disconnect(die)
    return other


def test_what_no_relay_has_answered_for_waits_for_no_newer_events(heard):
    """The claim of a relay that died has ended; newer events are there: it is delivered before them."""
    old = OrderFactory.create()
    OrderEvent.objects.update(attempts=1)
    OrderFactory.create()
    relay.relay(limit=1)
    assert [key for key, _ in heard] == list(OrderEvent.objects.order_by("pk").values_list("pk", flat=True))
    assert OrderEvent.objects.get(order=old).delivered_at is not None


def test_mutant_that_claims_everything_together_again(heard, monkeypatch):
    """Without that each relay claims the fatal event with those behind it, and delivers none of them."""
    monkeypatch.setattr(relay, "_CLAIM", relay._CLAIM.replace("(attempts > 0 AND error = '')", "false"))
    fatal, _ = OrderFactory.create(), OrderFactory.create()
    relay_while_one_event_kills(fatal)
    assert OrderEvent.objects.filter(delivered_at=None).count() == 2


def paid_while_a_relay_holds_placed() -> None:
    """One relay has claimed `placed`; the order is paid; a second relay runs; then the first one delivers."""
    order = OrderFactory.create()
    with buyers() as start:
        slow = start("slow", relay.relay, "claimed").reaches("claimed")
        lifecycle.pay(order.pk)
        relay.relay_all()
        slow.ends()
    relay.relay_all()


def test_a_second_relay_does_not_overtake_the_first(heard):
    """An event waits until the one before it of the same order is marked."""
    paid_while_a_relay_holds_placed()
    assert [kind for _, kind in heard] == ["placed", "paid"]


def test_mutant_without_the_head_of_the_queue(heard, monkeypatch):
    """SKIP LOCKED alone lets the second relay deliver `paid` before `placed`."""
    monkeypatch.setattr(relay, "_CLAIM", relay._CLAIM.replace(relay._HEAD, "true"))
    paid_while_a_relay_holds_placed()
    assert [kind for _, kind in heard] == ["paid", "placed"]


def test_two_relays_claim_different_events(heard):
    """While one stands in its claim's transaction the other skips its rows and delivers the rest."""
    first, second = OrderFactory.create(), OrderFactory.create()
    with transaction.atomic():
        list(OrderEvent.objects.select_for_update().filter(order=first))
        with buyers() as start:
            assert start("other", relay.relay).ends().result == 1
    assert not OrderEvent.objects.filter(order=second, delivered_at=None).exists()
    assert OrderEvent.objects.filter(order=first, delivered_at=None).exists()


def test_a_receiver_that_fails_gets_its_event_again(heard, caplog):
    """The error is kept, the order's later events wait, other orders' don't; then both come, in order."""
    broken = OrderFactory.create()
    lifecycle.pay(broken.pk)
    healthy = OrderFactory.create()

    def fail(sender, event, order, **kwargs):
        if order.pk == broken.pk:
            raise RuntimeError("no mail server")

    order_placed.connect(fail)
    try:
        relay.relay_all()
    finally:
        order_placed.disconnect(fail)
    waiting = OrderEvent.objects.filter(delivered_at=None).order_by("pk")
    assert [event.order_id for event in waiting] == [broken.pk] * 2
    assert "no mail server" in waiting[0].error
    assert "no mail server" in caplog.text
    assert kinds(healthy) == ["placed"]
    heard.clear()
    let_claims_end()
    relay.relay_all()
    assert [kind for _, kind in heard] == ["placed", "paid"]
    assert OrderEvent.objects.filter(delivered_at=None).count() == 0


def test_a_receiver_without_a_name_that_fails_gets_its_event_again(heard):
    """A partial has no `__qualname__`, which Django's log of a failure names; the relay goes on."""
    OrderFactory.create()

    def fail(to, sender, **kwargs):
        raise RuntimeError("no mail server")

    receiver = partial(fail, "ops@shop")
    order_placed.connect(receiver)
    try:
        assert relay.relay_all() == 1
    finally:
        order_placed.disconnect(receiver)
    event = OrderEvent.objects.get()
    assert "no mail server" in event.error
    assert event.delivered_at is None


def test_pauses_between_attempts_grow():
    """One second, then two, then four, at most an hour: by the database's clock."""
    OrderFactory.create()

    def fail(sender, **kwargs):
        raise RuntimeError("down")

    order_placed.connect(fail)
    pauses = []
    try:
        for attempts in (0, 1, 2, 40):
            OrderEvent.objects.update(due_at=Now(), attempts=attempts)
            before = OrderEvent.objects.get().due_at
            relay.relay()
            event = OrderEvent.objects.annotate(now=Now()).get()
            pauses.append((event.due_at - event.now, event.due_at - before))
    finally:
        order_placed.disconnect(fail)
    for (from_after, from_before), pause in zip(pauses, (1, 2, 4, 3600), strict=True):
        assert from_after <= timedelta(seconds=pause) <= from_before


def test_a_relay_whose_claim_has_ended_delivers_nothing(heard):
    """A frozen relay starts no delivery after its time: another one may have delivered the next event."""
    OrderFactory.create()
    assert relay.relay(lease=-1) == 1
    assert heard == []
    relay.relay_all()
    assert [kind for _, kind in heard] == ["placed"]


def test_a_receiver_may_change_the_order(heard):
    """It runs in no transaction, so it may open its own; what it does is published in turn."""

    def pay(sender, event, order, **kwargs):
        lifecycle.pay(order.pk)

    order_placed.connect(pay)
    try:
        OrderFactory.create()
        relay.relay_all()
    finally:
        order_placed.disconnect(pay)
    assert [kind for _, kind in heard] == ["placed", "paid"]


def test_a_kind_of_a_newer_version_stops_no_other(heard):
    """During an upgrade an old relay leaves what it doesn't know to a new one."""
    newer = OrderFactory.create()
    OrderEvent.objects.update(kind="gift_wrapped")
    OrderFactory.create()
    relay.relay_all()
    assert [kind for _, kind in heard] == ["placed"]
    assert "gift_wrapped" in OrderEvent.objects.get(order=newer).error


def test_delivered_events_are_forgotten_after_a_while(settings):
    """Only what was delivered; what is still to be delivered stays however old it is."""
    OrderFactory.create()
    relay.relay_all()
    OrderFactory.create()
    assert tasks.forget_events() == 0
    settings.EVENTS_KEPT = 0
    assert tasks.forget_events() == 1
    assert OrderEvent.objects.get().delivered_at is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["place", "pay", "cancel", "relay", "dies claimed", "dies delivered", "fails"]),
        st.integers(0, 2),
    ),
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_whatever_dies_every_event_is_delivered_in_order(heard, steps):
    """Orders change, relays run, die and fail in any order: afterwards every event was heard, in order."""
    OrderEvent.objects.all().delete()
    heard.clear()
    orders = [OrderFactory.create() for _ in range(3)]
    for step, number in steps:
        take_step(step, orders, number)
    let_claims_end()
    relay.relay_all()
    for order in orders:
        expected = list(OrderEvent.objects.filter(order=order).order_by("pk").values_list("pk", "kind"))
        first_heard = list(dict.fromkeys(event for event in heard if event in expected))
        assert first_heard == expected


def take_step(step: str, orders: list[Order], number: int) -> None:
    """Do one thing of the test above."""
    if step == "place":
        orders.append(OrderFactory.create())
    elif step in ("pay", "cancel"):
        with contextlib.suppress(lifecycle.TransitionRefused):
            getattr(lifecycle, step)(orders[number].pk)
    elif step == "fails":
        order_paid.connect(refuse_everything)
        relay.relay()
        order_paid.disconnect(refuse_everything)
    else:
        relay_once(step)
        let_claims_end()


def refuse_everything(sender, **kwargs):
    """A receiver whose server is down."""
    raise RuntimeError("down")


def relay_once(step: str) -> None:
    """Run the relay as far as `step` says."""

    def hook(name, /, **facts):
        if step == f"dies {name}":
            raise Dead

    with installed(hook), contextlib.suppress(Dead):
        relay.relay()


def test_the_command_outlives_a_connection(heard, monkeypatch, capsys):
    """With --every it is all that delivers events: a database that restarts does not end it."""

    def between(seconds):
        if not OrderEvent.objects.exists():
            OrderFactory.create()
            connection.connection.close()  # as the server does, unasked
        elif heard:
            raise KeyboardInterrupt

    monkeypatch.setattr("orders.management.commands.relay_events.sleep", between)
    with pytest.raises(KeyboardInterrupt):
        call_command("relay_events", "--every", "1")
    assert [kind for _, kind in heard] == ["placed"]
    assert "is closed" in capsys.readouterr().err


def test_the_command_outlives_a_failover(heard, monkeypatch, capsys):
    """Between two looks the server is a replica, which refuses to write; a new connection finds a primary."""
    looks = []

    def between(seconds):
        looks.append(seconds)
        if len(looks) == 1:
            OrderFactory.create()
            with connection.cursor() as cursor:
                cursor.execute("SET default_transaction_read_only = on")  # until this connection is closed
        elif heard or len(looks) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("orders.management.commands.relay_events.sleep", between)
    try:
        with pytest.raises(KeyboardInterrupt):
            call_command("relay_events", "--every", "1")
    finally:
        connection.close()
    assert [kind for _, kind in heard] == ["placed"]
    assert "read-only" in capsys.readouterr().err


def test_the_command_relays(heard, capsys):
    """`manage.py relay_events` delivers what is due, and refuses a pause that can't be one."""
    OrderFactory.create()
    call_command("relay_events")
    assert "1 events relayed" in capsys.readouterr().out
    with pytest.raises(CommandError, match="at most 3600"):
        call_command("relay_events", "--every", "0")
    assert json.dumps(heard[0][1]) == '"placed"'


# Products ---------------------------------------------------------------------------------------------------


@pytest.fixture
def mug() -> Product:
    """Two mugs, watched."""
    product: Product = ProductFactory.create(sku="mug", on_hand=2, low_stock_threshold=0)
    return product


def news() -> list[tuple[str, int]]:
    """Notice what has changed; return the kinds of products' events so far, and how many were for sale."""
    notice_low_stock()
    rows = OrderEvent.objects.filter(product__sku="mug").order_by("pk")
    return [(event.kind, event.data["available"]) for event in rows]


def test_a_delivery_brings_a_product_back(mug):
    """Once, and only after it was sold out; nothing is published twice."""
    assert news() == []
    receive(1)
    checkout([Line("mug", 3)], "conditional_update")
    assert [news(), news()] == [[("low_stock", 0)]] * 2
    for _ in range(2):
        receive(5)
        assert news() == [("low_stock", 0), ("back_in_stock", 5)]


@pytest.mark.parametrize("end", ["cancel", "release", "expire"])
def test_units_that_come_back_bring_their_product_back(mug, end):
    """A cancelled order and a reservation that ends."""
    if end == "cancel":
        order = checkout([Line("mug", 2)], "combined")
        news()
        lifecycle.cancel(order.pk)
    else:
        made = reserve([Line("mug", 2)], timedelta(minutes=1))
        news()
        Reservation.objects.update(expires_at=Now())
        release(made.id) if end == "release" else tasks.sweep_reservations()
    assert news()[-1] == ("back_in_stock", 2)


def test_what_a_product_publishes_is_delivered_again_after_a_death(mug):
    """The receiver's process is killed: the event comes again, as an order's does."""
    heard: list[int] = []

    def hear(sender, event, product, **kwargs):
        heard.append(product.pk)
        if len(heard) == 1:
            raise Dead

    checkout([Line("mug", 2)], "conditional_update")
    news()
    low_stock.connect(hear)
    back_in_stock.connect(hear)
    try:
        for _ in range(2):
            with contextlib.suppress(Dead):
                relay.relay_all()
            let_claims_end()
    finally:
        low_stock.disconnect(hear)
        back_in_stock.disconnect(hear)
    assert heard == [mug.pk] * 2
    assert not OrderEvent.objects.filter(delivered_at=None).exists()


def test_a_locked_product_holds_up_no_other(mug):
    """Its row is skipped, and the next look finds it."""
    ProductFactory.create(sku="pen", on_hand=0, low_stock_threshold=0)
    checkout([Line("mug", 2)], "conditional_update")
    with transaction.atomic():
        list(Product.objects.select_for_update().filter(sku="mug"))
        with buyers() as start:
            assert start("other", notice_low_stock).ends().result == 1
    assert notice_low_stock() == 1
