"""The whole shop against a plain model: whatever is done in whatever order, the totals agree.

`HOLDFAST_STEPS=10000 pytest tests/orders/test_shop_machine.py` takes so many steps instead of a few.
"""

import contextlib
import os
import secrets
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from itertools import count

import pytest
from django.core.management import call_command
from django.db.models.functions import Now
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

import inventory
from inventory import NotThere, ReservationGone, Shortage, SoldOut, hooks
from inventory.models import Reservation
from inventory.reservations import expire
from orders.after_sale import fulfillment, lifecycle
from orders.audit import audit
from orders.catalog.products import create_product
from orders.models import IdempotencyKey, Order, Product
from orders.selling import reservations
from orders.selling.cart import merge_lines
from orders.selling.checkout import checkout, checkout_reserved
from orders.selling.refusals import LimitReached, MixedCurrencies, PriceChanged, RepeatedKey
from orders.selling.strategies import names
from orders.selling.writing import ClientKey

PRICES = (Decimal("1.50"), Decimal("20.00"), Decimal("0.00"))
LIMIT = 6  # units of the last product that one customer may have
ANN = "ann"
TEN_MINUTES = timedelta(minutes=10)
ENDED = ("cancelled", "expired")
EXAMPLE = 50  # steps of an example in the long run, at most
USUAL = 40  # steps that most of them come to

products = st.integers(0, len(PRICES) - 1)
carts = st.lists(st.tuples(products, st.integers(1, 4)), min_size=1, max_size=4)
ways = st.sampled_from(names())
shares = st.sampled_from(["one", "all", "too many"])
parcels = st.integers(0, 2)

Units = Counter[str]


class Crash(Exception):
    """A process ends in the middle of its work."""


@contextlib.contextmanager
def crash_at(step):
    """Let a process end at `step`."""

    def crash(name, /, **facts):
        if name == step:
            raise Crash

    with hooks.installed(crash):
        yield


class Shop(RuleBasedStateMachine):
    """A shop of three products, and next to it what a shopkeeper would note on paper."""

    numbers = count()
    baskets = Bundle("baskets")
    orders = Bundle("orders")

    def __init__(self) -> None:
        super().__init__()
        call_command("flush", verbosity=0, interactive=False)  # the audit looks at everything
        run = f"{next(self.numbers)}-{secrets.token_hex(4)}"  # products and a customer of its own
        self.ann = f"{ANN}-{run}"
        self.skus = [f"machine-{run}-{number}" for number in range(len(PRICES))]
        for sku, price in zip(self.skus, PRICES, strict=True):
            create_product(sku, price=price, on_hand=3)
        Product.objects.filter(sku=self.skus[-1]).update(customer_limit=LIMIT)
        self.prices = dict(zip(self.skus, PRICES, strict=True))
        self.currencies = dict.fromkeys(self.skus, "EUR")
        self.available: Units = Counter(dict.fromkeys(self.skus, 3))
        self.unavailable: Units = Counter()
        self.promises: dict[uuid.UUID, Units] = {}
        self.agreed: dict[uuid.UUID, tuple[Decimal, str]] = {}
        self.late: set[uuid.UUID] = set()
        self.states: dict[uuid.UUID, str] = {}
        self.totals: dict[uuid.UUID, tuple[Decimal, str]] = {}
        self.bought: dict[uuid.UUID, Units] = {}
        self.moved: dict[tuple[str, uuid.UUID], Units] = {}
        self.references: dict[tuple[object, ...], Units] = {}
        self.overdue: set[uuid.UUID] = set()
        self.keys: set[int] = set()
        self.causes = count()

    # Stock.

    def cause(self) -> str:
        """Return a cause that was never used."""
        return f"{self.skus[0]}:{next(self.causes)}"

    @rule(product=products, units=st.integers(1, 5))
    def deliver(self, product, units):
        """More comes in, and the same delivery noted twice counts once."""
        cause = self.cause()
        for _ in range(2):
            inventory.stock.receive(self.skus[product], units, cause=cause)
        self.available[self.skus[product]] += units

    @rule(product=products, units=st.integers(-5, 5).filter(bool))
    def correct(self, product, units):
        """A shelf has more or less than it should; less than there is for sale is refused."""
        sku = self.skus[product]
        adjust = partial(inventory.stock.adjust, sku, units, cause=self.cause())
        if self.available[sku] + units < 0:
            with pytest.raises(NotThere):
                adjust()
        else:
            adjust()
            self.available[sku] += units

    @rule(product=products, counted=st.integers(0, 12))
    def count_shelf(self, product, counted):
        """The count becomes the stock; less than is promised is refused."""
        sku = self.skus[product]
        act = partial(inventory.stock.count, sku, counted, cause=self.cause())
        difference = counted - self.on_hand(sku)
        if self.available[sku] + difference < 0:
            with pytest.raises(NotThere):
                act()
        else:
            for _ in range(2):
                act()
            self.available[sku] += difference

    def on_hand(self, sku):
        """Return what a count must find."""
        return self.available[sku] + self.unavailable[sku] + self.reserved(sku) + self.committed(sku)

    def reserved(self, sku):
        """Return the units of reservations that weren't ended, late ones as well."""
        return sum(units[sku] for units in self.promises.values())

    def committed(self, sku):
        """Return the units that are sold and not shipped."""
        return sum(self.open(order)[sku] for order in self.states)

    # Selling.

    @rule(product=products, price=st.sampled_from(PRICES), currency=st.sampled_from(["EUR", "EUR", "USD"]))
    def reprice(self, product, price, currency):
        """What was ordered keeps its price, and what was reserved its agreement."""
        sku = self.skus[product]
        Product.objects.filter(sku=sku).update(price=price, currency=currency)
        self.prices[sku], self.currencies[sku] = price, currency

    @rule(target=orders, cart=carts, way=ways)
    def buy(self, cart, way):
        """A cart is sold whole or refused whole, with every short line named."""
        return self.try_to_buy(cart, way) or multiple()

    @rule(cart=carts, way=ways, key=st.integers(0, 1))
    def buy_with_key(self, cart, way, key):
        """One key is one order, whatever is bought and whichever way, however often it comes."""
        named = ClientKey(self.skus[0], str(key), "fingerprint")
        if key in self.keys:
            with pytest.raises((RepeatedKey, SoldOut, MixedCurrencies, LimitReached)):
                checkout(self.lines(cart), way, customer=self.ann, key=named)
            self.sweep()  # whether it has done so depends on why it was refused
        elif self.try_to_buy(cart, way, key=named):
            self.keys.add(key)

    def try_to_buy(self, cart, way, **options):
        """Buy, or be refused as the paper says; return the order's key."""
        lines = self.lines(cart)
        wanted = Counter(dict(merge_lines(lines)))
        buy = partial(checkout, (line for line in lines), way, customer=self.ann, **options)
        self.sweep()
        if short := self.shortages(wanted):
            with pytest.raises(SoldOut) as refused:
                buy()
            assert set(refused.value.shortages) == short
            return None
        if refusal := self.refusal(wanted):
            with pytest.raises(refusal):
                buy()
            return None
        return self.note(wanted, buy().pk, self.bill(wanted))

    @rule(cart=carts, way=ways, step=st.sampled_from(["decided", "written", "recorded"]))
    def fail(self, cart, way, step):
        """A sale that fails before its commit sells nothing, whichever way it was."""
        lines = self.lines(cart)
        self.sweep()
        with crash_at(step):
            try:
                order = checkout(lines, way, customer=self.ann)
            except (Crash, SoldOut, MixedCurrencies, LimitReached):
                return
        wanted = Counter(dict(merge_lines(lines)))
        self.note(wanted, order.pk, self.bill(wanted))  # it never came to that step

    @rule(target=baskets, cart=carts)
    def reserve(self, cart):
        """Units are promised, all or none; what has run out may be promised again."""
        wanted = Counter(dict(merge_lines(self.lines(cart))))
        act = partial(reservations.reserve, self.lines(cart), TEN_MINUTES, self.ann)
        self.sweep()
        refusal = (
            self.refusal(wanted, limits=False)
            or (SoldOut if self.shortages(wanted) else None)
            or self.refusal(wanted)
        )
        if refusal:
            with pytest.raises(refusal):
                act()
            return multiple()
        basket = act().id
        self.promises[basket], self.agreed[basket] = wanted, self.bill(wanted)
        self.available.subtract(wanted)
        return basket

    @rule(basket=baskets)
    def run_out(self, basket):
        """Time passes, and no sweep."""
        Reservation.objects.filter(pk=basket).update(expires_at=Now())
        self.late.add(basket)

    @rule()
    def sweep(self):
        """The task frees what has run out."""
        expire("default")
        for basket in self.late:
            self.available.update(self.promises[basket])
            self.promises[basket] = Counter()

    @rule(basket=baskets)
    def release(self, basket):
        """A customer gives back what is still promised; twice is once."""
        if self.promises[basket] or basket in self.late or self.was_released(basket):
            reservations.release(basket)
        else:
            with pytest.raises(ReservationGone):
                reservations.release(basket)
        self.available.update(self.promises[basket])
        self.promises[basket] = Counter()

    def was_released(self, basket):
        """Return whether it ended without a sale."""
        return Reservation.objects.get(pk=basket).state == "released"

    @rule(target=orders, basket=baskets)
    def buy_reserved(self, basket):
        """A promise is kept, once, at the price that was agreed, and not after its end."""
        if not self.promises[basket] or basket in self.late:
            with pytest.raises(ReservationGone):
                checkout_reserved(basket)
            return multiple()
        wanted = self.promises[basket]
        currencies = {self.currencies[sku] for sku in wanted}
        if len(currencies) > 1 or self.bill(wanted) != self.agreed[basket]:
            with pytest.raises(MixedCurrencies if len(currencies) > 1 else PriceChanged):
                checkout_reserved(basket)
            return multiple()
        self.promises[basket] = Counter()
        self.available.update(wanted)
        return self.note(wanted, checkout_reserved(basket).id, self.agreed[basket])

    def lines(self, cart):
        """Return the cart as the checkout takes it, duplicates and all."""
        return [(self.skus[product], units) for product, units in cart]

    def bill(self, wanted):
        """Return what units cost now."""
        total = sum((self.prices[sku] * units for sku, units in wanted.items()), Decimal(0))
        return total, self.currencies[next(iter(wanted))]

    def shortages(self, wanted):
        """Return what the shopkeeper would say is short."""
        return {
            Shortage(sku, units, self.available[sku])
            for sku, units in wanted.items()
            if self.available[sku] < units
        }

    def refusal(self, wanted, *, limits=True):
        """Return why a cart that is there is refused."""
        if len({self.currencies[sku] for sku in wanted}) > 1:
            return MixedCurrencies
        limited = self.skus[-1]
        has = sum(self.kept(order)[limited] for order in self.states)
        has += sum(units[limited] for basket, units in self.promises.items() if basket not in self.late)
        return LimitReached if limits and limited in wanted and has + wanted[limited] > LIMIT else None

    def note(self, wanted, order, total):
        """Write a sale down on paper."""
        self.available.subtract(wanted)
        self.states[order], self.totals[order], self.bought[order] = "placed", total, Counter(wanted)
        for what in ("shipped", "returned", "cancelled"):
            self.moved[what, order] = Counter()
        return order

    # After the sale.

    def open(self, order):
        """Return the units of an order that may leave."""
        return self.bought[order] - self.moved["shipped", order] - self.moved["cancelled", order]

    def kept(self, order):
        """Return the units that the customer has, or will have."""
        return self.bought[order] - self.moved["returned", order] - self.moved["cancelled", order]

    @rule(order=orders)
    def let_window_end(self, order):
        """The customer doesn't pay in time."""
        Order.objects.filter(pk=order).update(pay_by=Now())
        self.overdue.add(order)

    @rule()
    def expire_orders(self):
        """The task ends what is overdue."""
        lifecycle.expire_overdue()
        for order in self.overdue:
            if self.states[order] == "placed":
                self.end(order, "expired")

    @rule(order=orders)
    def pay(self, order):
        """A placed order is paid once, in time; too late, it has ended, and its units are for sale again."""
        if self.states[order] == "placed" and order in self.overdue:
            self.end(order, "expired")
            with pytest.raises(lifecycle.PaymentTooLate):
                lifecycle.pay(order)
        elif self.states[order] in ENDED:
            with pytest.raises(lifecycle.PaymentTooLate):
                lifecycle.pay(order)
        else:
            lifecycle.pay(order)
            if self.states[order] == "placed":
                self.states[order] = "paid"

    @rule(order=orders)
    def cancel(self, order):
        """An order is cancelled until something has left."""
        if self.states[order] in ("placed", "paid"):
            lifecycle.cancel(order)
            self.end(order, "cancelled")
        elif self.states[order] == "cancelled":
            lifecycle.cancel(order)
        else:
            with pytest.raises(lifecycle.TransitionRefused):
                lifecycle.cancel(order)

    def end(self, order, state):
        """Write down that an order ended and its units are back."""
        self.available.update(self.open(order))
        self.moved["cancelled", order] += self.open(order)
        self.states[order] = state

    @rule(order=orders, share=shares, parcel=parcels)
    def ship(self, order, share, parcel):
        """Units leave once; no more than were bought."""
        self.step(
            "shipped", fulfillment.ship, order, self.open(order), share, parcel, ("paid", "partly_shipped")
        )

    @rule(order=orders, share=shares, parcel=parcels, damaged=st.booleans())
    def take_back(self, order, share, parcel, damaged):
        """Units that have left come back, each return once; no more than are out."""
        out = self.moved["shipped", order] - self.moved["returned", order]
        states = ("partly_shipped", "shipped", "returned")
        act = partial(fulfillment.take_back, damaged=damaged)
        back = self.step("returned", act, order, out, share, parcel, states, apart=damaged)
        (self.unavailable if damaged else self.available).update(back)

    @rule(order=orders, share=shares, parcel=parcels, lost=st.booleans())
    def cancel_units(self, order, share, parcel, lost):
        """Units that haven't left never do: they are for sale again, or lost."""
        states = ("paid", "partly_shipped")
        act = partial(fulfillment.cancel_units, lost=lost)
        gone = self.step("cancelled", act, order, self.open(order), share, parcel, states, apart=lost)
        if not lost:
            self.available.update(gone)

    def step(self, what, act, order, able, share, parcel, states, *, apart=False):
        """Do one step of an order, or be refused as the paper says; return the units that were moved."""
        wanted = self.some(order, able, share)
        do = partial(act, order, list(wanted.items()), f"{apart}-{parcel}")
        if known := self.references.get((what, order, apart, parcel)):
            if wanted == known:
                assert do().state == self.states[order]
            else:
                with pytest.raises(fulfillment.ReferenceUsed):
                    do()
        elif self.states[order] not in states:
            with pytest.raises(lifecycle.TransitionRefused):
                do()
        elif wanted - able:
            with pytest.raises(fulfillment.TooMany):
                do()
        else:
            self.references[what, order, apart, parcel] = wanted
            self.moved[what, order] += wanted
            self.states[order] = self.state_of(order)
            assert do().state == self.states[order]
            return wanted
        return Counter()

    def some(self, order, able, share):
        """Return a part of what is able to move, all of it, or more."""
        if share == "all" and able:
            return Counter(able)
        sku = max(self.bought[order], key=lambda each: able[each])
        return Counter({sku: able[sku] + 1 if share == "too many" else 1})

    def state_of(self, order):
        """Return the state that follows from what was moved."""
        shipped, returned = self.moved["shipped", order], self.moved["returned", order]
        if self.open(order):
            return "partly_shipped" if shipped else "paid"
        return ("returned" if shipped == returned else "shipped") if shipped else "cancelled"

    @rule(order=orders, cart=carts)
    def die(self, order, cart):
        """Killed before its commit, no step has done anything."""
        self.sweep()
        state = self.states[order]
        steps: list[Callable[[], object]] = []
        if state == "placed" and order not in self.overdue:
            steps.append(partial(lifecycle.pay, order))
        if state in ("placed", "paid"):
            steps.append(partial(lifecycle.cancel, order))
        if state in ("paid", "partly_shipped"):
            steps.append(partial(fulfillment.ship, order, None, "die"))
            steps.append(partial(fulfillment.cancel_units, order, None, "die"))
        wanted = Counter(dict(merge_lines(self.lines(cart))))
        if not self.shortages(wanted) and not self.refusal(wanted):
            steps.append(partial(reservations.reserve, self.lines(cart), TEN_MINUTES, self.ann))
        for act in steps:
            with crash_at("written"), pytest.raises(Crash):
                act()

    # What must hold.

    @invariant()
    def the_books_agree(self):
        """Balances and orders are what the paper says."""
        for sku in self.skus:
            (level,) = inventory.stock.levels(sku)
            found = (level.available, level.reserved, level.committed, level.unavailable)
            assert found == (
                self.available[sku],
                self.reserved(sku),
                self.committed(sku),
                self.unavailable[sku],
            )
        mine = Order.objects.filter(pk__in=self.states)
        assert {order.pk: order.state for order in mine} == self.states
        assert {order.pk: (order.total, order.currency) for order in mine} == self.totals
        assert IdempotencyKey.objects.filter(scope=self.skus[0]).count() == len(self.keys)

    @invariant()
    def the_audit_finds_nothing(self):
        """No invariant is broken after any step."""
        COUNTED["steps"] += 1
        assert audit() == []


COUNTED: Counter[str] = Counter()

LONG_ENOUGH = 7200 if "HOLDFAST_STEPS" in os.environ else 300


at_two_lengths = pytest.mark.parametrize(
    "examples", [4, pytest.param(12, marks=pytest.mark.whole)], ids=["briefly", "at length"]
)


def run_steps(machine, examples):
    """Take so many examples, or as many steps as `HOLDFAST_STEPS` says; return how many were audited."""
    wanted = int(os.environ.get("HOLDFAST_STEPS", "0"))
    examples, steps = (-(-wanted // USUAL), EXAMPLE) if wanted else (examples, 15)
    COUNTED.clear()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            deadline=None,
            derandomize=not wanted,  # each long run takes other steps
        ),
    )
    return COUNTED["steps"]


@pytest.mark.timeout(LONG_ENOUGH)
@pytest.mark.django_db(transaction=True)
@at_two_lengths
def test_the_shop_keeps_its_books_whatever_is_done(capsys, examples):
    """Deliveries, sales, payments, shipments, returns, counts, and deaths in the middle of each."""
    steps = run_steps(Shop, examples)
    with capsys.disabled():
        print(f"\nsteps of the shop, each audited: {steps}")


@pytest.mark.django_db(transaction=True)
def test_the_machine_catches_a_shop_that_forgets(monkeypatch):
    """A shop whose parcels leave without the ledger is found out."""
    monkeypatch.setattr("orders.after_sale.lifecycle.stock.cancel", lambda *_, **__: None)
    hurried = settings(max_examples=20, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_state_machine_as_test(Shop, settings=hurried)
