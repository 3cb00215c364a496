"""The whole shop against a plain model: whatever is done in whatever order, the totals agree.

`HOLDFAST_STEPS=10000 pytest tests/orders/test_shop_machine.py` takes so many steps instead of a few.
"""

import os
import secrets
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from itertools import count
from unittest.mock import patch

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone
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

from inventory import reservations
from inventory.checkpoints import installed
from inventory.domain import Line, MixedCurrencies, ReferenceUsed, Shortage, SoldOut, merge_lines
from inventory.locations import NotThere, move_stock
from inventory.models import Product, StockLevel, StockLocation, StockMovement, StockReservation
from inventory.services import change_stock, create_product
from inventory.stocktake import CountTooLow, take_stock, with_count
from inventory.strategies import STRATEGIES
from orders import fulfillment, lifecycle
from orders.audit import audit
from orders.models import Order
from orders.order_writer import ClientKey, RepeatedKey
from orders.services import checkout, checkout_reserved

# Those on servers of their own sell as the Redis one does; their tests start those servers.
SOUND = sorted(
    strategy.name for strategy in STRATEGIES.values() if strategy.sound and not strategy.lock_setting
)
PRICES = (Decimal("1.50"), Decimal("20.00"), Decimal("0.00"))
TEN_MINUTES = timedelta(minutes=10)
STEPS = ("read", "written", "recorded")
WITH_CLAIMS = ("async_reserve", "unit_rows")
EXAMPLE = 50  # steps of an example in the long run, at most
USUAL = 40  # steps that most of them come to

TOTALS = """
SELECT p.sku, p.on_hand, p.reserved,
       coalesce((SELECT sum(r.quantity) FROM inventory_stockreservation r
                  WHERE r.product_id = p.id AND r.state = 'live'), 0),
       coalesce((SELECT sum(m.quantity) FROM inventory_stockmovement m WHERE m.product_id = p.id), 0),
       coalesce((SELECT sum(i.quantity - i.returned) FROM orders_orderitem i WHERE i.product_id = p.id), 0)
  FROM inventory_product p WHERE p.sku = ANY(%s)
"""
ORDERS = """
SELECT DISTINCT o.id, o.total, o.currency, o.state FROM orders_order o
  JOIN orders_orderitem i ON i.order_id = o.id JOIN inventory_product p ON p.id = i.product_id
 WHERE p.sku = ANY(%s)
"""

products = st.integers(0, len(PRICES) - 1)
carts = st.lists(st.tuples(products, st.integers(1, 4)), min_size=1, max_size=4)
ways = st.sampled_from(SOUND)
shares = st.sampled_from(["one", "all", "too many"])
parcels = st.integers(0, 2)
LOCATIONS = ("east", "west")  # by priority
places = st.sampled_from([None, *LOCATIONS])


LEVEL = ("product__sku", "location__code", "units")


def quantities(lines):
    """Return the units of each SKU."""
    return {line.sku: line.quantity for line in lines}


class Crash(Exception):
    """A process ends in the middle of its work."""


def crash_at(step):
    """Return a context in which a process ends at the checkpoint `step`."""

    def crash(name, /, **facts):
        if name == step:
            raise Crash

    return installed(crash)


class Shop(RuleBasedStateMachine):
    """A shop of three products, and next to it what a shopkeeper would note on paper."""

    numbers = count()
    baskets = Bundle("baskets")
    orders = Bundle("orders")

    def __init__(self) -> None:
        super().__init__()
        with connection.cursor() as cursor:  # the audit looks at everything
            cursor.execute(
                "TRUNCATE inventory_product, inventory_stocklocation, orders_order, orders_idempotencykey "
                "CASCADE"
            )
        run = f"{next(self.numbers)}-{secrets.token_hex(4)}"  # each example has products of its own
        self.skus = [f"machine-{run}-{number}" for number in range(len(PRICES))]
        for sku, price in zip(self.skus, PRICES, strict=True):
            create_product(sku, price=price, on_hand=3)
        self.locations = {
            code: StockLocation.objects.create(code=code, priority=priority)
            for priority, code in enumerate(LOCATIONS)
        }
        self.open = set(LOCATIONS)
        self.levels: Counter[tuple[str, str]] = Counter()
        self.outside: Counter[tuple[uuid.UUID, str, str | None]] = Counter()
        self.sources: dict[uuid.UUID, dict[str, str | None]] = {}
        self.limits = dict.fromkeys(self.skus, 0)
        self.currencies = dict.fromkeys(self.skus, "EUR")
        self.money: dict[uuid.UUID, str] = {}
        self.stock = dict.fromkeys(self.skus, 3)
        self.sold = dict.fromkeys(self.skus, 0)
        self.totals: dict[uuid.UUID, Decimal] = {}
        self.states: dict[uuid.UUID, str] = {}
        self.units: dict[uuid.UUID, dict[str, int]] = {}
        self.shipped: dict[uuid.UUID, dict[str, int]] = {}
        self.back: dict[uuid.UUID, dict[str, int]] = {}
        self.references: dict[tuple[object, ...], dict[str, int]] = {}
        self.unpaid: set[uuid.UUID] = set()
        self.promises: dict[uuid.UUID, dict[str, int]] = {}
        self.late: set[uuid.UUID] = set()
        self.keys: set[int] = set()
        self.causes = count()

    @rule(product=products, units=st.integers(1, 5), place=places)
    def deliver(self, product, units, place):
        """More comes in, somewhere, and the same delivery noted twice counts once."""
        sku = self.skus[product]
        cause = f"delivery:{sku}:{next(self.causes)}"
        row = Product.objects.get(sku=sku)
        receive = partial(
            change_stock, row, StockMovement.Kind.RECEIVED, units, cause, location=self.locations.get(place)
        )
        receive()
        with pytest.raises(IntegrityError):
            receive()
        self.stock[sku] += units
        self.put(sku, place, units)

    @rule(product=products, units=st.integers(-5, 5).filter(bool), place=places)
    def correct(self, product, units, place):
        """A shelf has more or less than it should; less than was promised, or than was there, is refused."""
        sku = self.skus[product]
        adjust = partial(
            change_stock,
            Product.objects.get(sku=sku),
            StockMovement.Kind.ADJUSTED,
            units,
            f"count:{sku}:{next(self.causes)}",
            location=self.locations.get(place),
        )
        if self.available(sku) + units < 0:
            with pytest.raises(IntegrityError):
                adjust()
        elif self.at(sku, place) + units < 0:
            with pytest.raises(NotThere):
                adjust()
        else:
            adjust()
            self.stock[sku] += units
            self.put(sku, place, units)

    @rule(product=products, units=st.integers(1, 4), source=places, to=places, again=st.booleans())
    def carry(self, product, units, source, to, again):
        """Units go from one place to another, once; no more than are there, and to somewhere else."""
        sku = self.skus[product]
        act = partial(
            move_stock,
            Product.objects.get(sku=sku),
            units,
            self.locations.get(source),
            self.locations.get(to),
            f"van-{next(self.causes)}",
        )
        if source == to:
            with pytest.raises(ValueError, match="between two locations"):
                act()
        elif self.at(sku, source) < units:
            with pytest.raises(NotThere):
                act()
        else:
            assert act()
            self.put(sku, source, -units)
            self.put(sku, to, units)
            assert not (again and act())

    @rule(code=st.sampled_from(LOCATIONS), is_open=st.booleans())
    def open_or_close(self, code, is_open):
        """Lines leave from open locations; what was promised before stays so."""
        StockLocation.objects.filter(code=code).update(active=is_open)
        (self.open.add if is_open else self.open.discard)(code)

    @rule(product=products, limit=st.integers(0, 4))
    def allow_backorders(self, product, limit):
        """Units may be sold before they come in; the limit never falls below what was sold and promised."""
        sku = self.skus[product]
        row = Product.objects.filter(sku=sku)
        if self.available(sku) - self.limits[sku] + limit < 0:
            with pytest.raises(IntegrityError):
                row.update(backorder_limit=limit)
        else:
            row.update(backorder_limit=limit)
            self.limits[sku] = limit

    @rule(product=products, currency=st.sampled_from(["EUR", "EUR", "USD"]))
    def price_in(self, product, currency):
        """A product is sold in another currency from now on; what was ordered keeps its own."""
        sku = self.skus[product]
        Product.objects.filter(sku=sku).update(currency=currency)
        self.currencies[sku] = currency

    @rule(target=orders, cart=carts, way=ways)
    def buy(self, cart, way):
        """A cart is sold whole or refused whole, with every short line named."""
        lines = self.lines(cart)
        if self.is_mixed(lines):
            self.refused_as_mixed(lines, way)
            return multiple()
        if self.is_refused(lines, way):
            self.refused(lines, lambda: checkout(lines, strategy=way))
            return multiple()
        order = self.note(lines, checkout((line for line in lines), strategy=way))
        self.fold(way)
        return order

    @rule(cart=carts, way=ways, key=st.integers(0, 1))
    def buy_with_key(self, cart, way, key):
        """One key is one order, whatever is bought and whichever way, however often it comes."""
        lines = self.lines(cart)
        named = ClientKey(self.skus[0], str(key), "fingerprint")
        if self.is_mixed(lines):
            self.refused_as_mixed(lines, way, key=named)
        elif self.is_refused(lines, way):
            self.refused(lines, lambda: checkout(lines, strategy=way, key=named))
        elif key in self.keys:
            with pytest.raises(RepeatedKey):
                checkout(lines, strategy=way, key=named)
            self.fold(way)  # what was refused may have been reserved, and is spread over rows
        else:
            self.keys.add(key)
            self.note(lines, checkout(lines, strategy=way, key=named))
            self.fold(way)

    @rule(cart=carts, way=ways, step=st.sampled_from(STEPS))
    def fail(self, cart, way, step):
        """A sale that fails before its commit sells nothing, whichever way it was."""
        lines = self.lines(cart)
        self.sweep()

        with crash_at(step):
            try:
                order = checkout(lines, strategy=way)
            except (Crash, SoldOut, MixedCurrencies):
                self.fold(way)
                return
        self.note(lines, order)  # it never came to that step
        self.fold(way)

    @rule(target=baskets, cart=carts)
    def reserve(self, cart):
        """Units are promised, all or none; what has run out may be promised anew."""
        lines = self.lines(cart)
        if self.is_mixed(lines):
            with pytest.raises(MixedCurrencies):
                reservations.reserve(lines, TEN_MINUTES)
            return multiple()
        short = {line.sku for line in merge_lines(lines) if self.available(line.sku) < line.quantity}
        if self.shortages(lines, late_ones_count=False):
            self.refused(lines, lambda: reservations.reserve(lines, TEN_MINUTES))
            return multiple()
        self.free_late(short)
        basket = reservations.reserve(lines, TEN_MINUTES).basket
        self.promises[basket] = {line.sku: line.quantity for line in merge_lines(lines)}
        return basket

    @rule(basket=baskets)
    def run_out(self, basket):
        """Time passes; nobody sweeps."""
        StockReservation.objects.filter(basket=basket).update(expires_at=timezone.now() - TEN_MINUTES)
        self.late.add(basket)

    @rule()
    def sweep(self):
        """The task frees what has run out."""
        reservations.expire_overdue(self.skus)
        self.free_late(self.skus)

    @rule(basket=baskets)
    def release(self, basket):
        """A customer gives back what is still promised, once; what has run out is free then as well."""
        if self.promises[basket] and basket not in self.late:
            reservations.release(basket)
        else:
            with pytest.raises(reservations.ReservationGone):
                reservations.release(basket)
        self.promises[basket] = {}

    @rule(target=orders, basket=baskets)
    def buy_reserved(self, basket):
        """A promise is kept, once, and not after its end."""
        if not self.promises[basket] or basket in self.late:
            with pytest.raises(reservations.ReservationGone):
                checkout_reserved(basket)
            return multiple()
        lines = [Line(sku, units) for sku, units in self.promises[basket].items()]
        if self.is_mixed(lines):
            with pytest.raises(MixedCurrencies):
                checkout_reserved(basket)
            return multiple()
        self.promises[basket] = {}
        return self.note(lines, checkout_reserved(basket).order)

    @rule(order=orders)
    def pay(self, order):
        """A placed order is paid once, in time; too late, it has ended, and its units are for sale again."""
        if self.states[order] == "placed" and order in self.unpaid:
            self.end(order, "expired")
        if self.states[order] in ("cancelled", "expired"):
            with pytest.raises(lifecycle.PaymentTooLate):
                lifecycle.pay(order)
        else:
            lifecycle.pay(order)  # again, too: a provider repeats its message
            if self.states[order] == "placed":
                self.note_payment(order)

    def note_payment(self, order):
        """Write down that it is paid, and the location that each line is to leave from."""
        self.states[order] = "paid"
        for sku, units in self.units[order].items():
            offers = {
                code: self.levels[sku, code] - self.waiting(sku, code)
                for code in LOCATIONS
                if code in self.open
            }
            offers = {code: there for code, there in offers.items() if there > 0}
            enough = [code for code, there in offers.items() if there >= units]
            self.sources[order][sku] = (
                enough[0] if enough else max(offers, key=lambda code: offers[code], default=None)
            )

    def waiting(self, sku, code):
        """Return the units of a product that paid orders are to take from a location."""
        return sum(
            self.allocated(order, sku) for order in self.live() if self.sources[order].get(sku) == code
        )

    @rule(order=orders)
    def cancel(self, order):
        """Units come back once, however often it is cancelled; what has expired or has left stays so."""
        if self.states[order] not in ("placed", "paid", "cancelled"):
            expired = self.states[order] == "expired"
            with pytest.raises(lifecycle.TransitionRefused if expired else lifecycle.AlreadyShipped):
                lifecycle.cancel(order)
            return
        lifecycle.cancel(order)
        if self.states[order] != "cancelled":
            self.end(order, "cancelled")

    @rule(order=orders)
    def do_not_pay(self, order):
        """The payment window ends; nobody sweeps."""
        Order.objects.filter(pk=order).update(pay_by=timezone.now() - TEN_MINUTES)
        self.unpaid.add(order)

    @rule()
    def expire_orders(self):
        """The task ends each order that was not paid in time, once."""
        overdue = [order for order in self.unpaid if self.states[order] == "placed"]
        assert [lifecycle.expire(order) for order in self.unpaid].count(True) == len(overdue)
        for order in overdue:
            self.end(order, "expired")

    @rule(order=orders, share=shares, parcel=parcels, place=places)
    def ship(self, order, share, parcel, place):
        """Units of a paid order leave, in parts, each parcel once; no more than are still here, or there."""
        here = {sku: self.units[order][sku] - self.shipped[order][sku] for sku in self.units[order]}
        lines = None if share == "all" else self.some(here, share)
        act = partial(fulfillment.ship, order, lines, f"out-{parcel}", location=self.locations.get(place))
        if known := self.references.get(("out", order, parcel)):
            self.repeat(act, order, known, lines)
        elif self.states[order] not in ("paid", "partly_shipped"):
            with pytest.raises(lifecycle.TransitionRefused):
                act()
        elif share == "too many":
            with pytest.raises(fulfillment.TooManyShipped):
                act()
        elif not self.can_leave(order, leaving := here if lines is None else quantities(lines), place):
            with pytest.raises(NotThere):
                act()
        else:
            self.references["out", order, parcel] = {sku: units for sku, units in leaving.items() if units}
            self.note_shipment(order, leaving, place)
            assert act().state == self.states[order]

    def repeat(self, act, order, known, lines):
        """A reference of before changes nothing, and is refused when it comes with other units."""
        if lines is None or quantities(lines) == known:
            assert act().state == self.states[order]
        else:
            with pytest.raises(ReferenceUsed):
                act()

    def can_leave(self, order, units, place=None):
        """Return whether each product's units are where they are to leave from."""
        return all(
            self.at(sku, place or self.sources[order].get(sku)) >= number for sku, number in units.items()
        )

    def note_shipment(self, order, units, place):
        """Write down what has left, and from where."""
        for sku, number in units.items():
            source = place or self.sources[order].get(sku)
            self.put(sku, source, -number)
            self.outside[order, sku, source] += number
            self.shipped[order][sku] += number
        whole = self.shipped[order] == self.units[order]
        self.states[order] = "shipped" if whole else "partly_shipped"

    @rule(order=orders, share=shares, parcel=parcels)
    def take_back(self, order, share, parcel):
        """Units that have left come back, each return once; no more than are out."""
        out = {sku: self.shipped[order][sku] - self.back[order][sku] for sku in self.units[order]}
        lines = self.some(out, share)
        act = partial(fulfillment.take_back, order, lines, f"back-{parcel}")
        if known := self.references.get(("back", order, parcel)):
            self.repeat(act, order, known, lines)
        elif self.states[order] not in ("partly_shipped", "shipped", "returned"):
            with pytest.raises(lifecycle.TransitionRefused):
                act()
        elif share == "too many" or not any(out.values()):
            with pytest.raises(fulfillment.TooManyReturned):
                act()
        else:
            self.references["back", order, parcel] = returned = quantities(lines)
            state = act().state
            self.note_return(order, returned)
            assert state == self.states[order]

    def note_return(self, order, units):
        """Write down what is for sale again."""
        for sku, number in units.items():
            came: Counter[str | None] = Counter(
                {code: self.found_levels()[sku, code] - self.levels[sku, code] for code in LOCATIONS}
            )
            came[None] = number - came.total()
            for place, units_back in came.items():  # to nowhere else than where they left from
                assert 0 <= units_back <= self.outside[order, sku, place]
                self.outside[order, sku, place] -= units_back
                self.put(sku, place, units_back)
            self.back[order][sku] += number
            self.stock[sku] += number
            self.sold[sku] -= number
        if self.back[order] == self.units[order]:
            self.states[order] = "returned"

    def some(self, open_units, share):
        """Return lines of a part of what is open, of all, or of more."""
        most = {sku: units for sku, units in open_units.items() if units}
        if share == "all" and most:
            return [Line(sku, units) for sku, units in most.items()]
        sku = max(open_units, key=lambda each: open_units[each])
        return [Line(sku, open_units[sku] + 1 if share == "too many" else 1)]

    def in_building(self, sku):
        """Return what a count must find: units for sale, and those sold and not shipped."""
        return self.stock[sku] + sum(self.allocated(order, sku) for order in self.live())

    def live(self):
        """Return the orders that have not ended."""
        return [order for order in self.units if self.states[order] not in ("cancelled", "expired")]

    def allocated(self, order, sku):
        """Return the units of a live order that are sold and have not left."""
        return self.units[order].get(sku, 0) - self.shipped[order].get(sku, 0)

    def at(self, sku, place):
        """Return the units at a location; those of no location are the rest."""
        if place is not None:
            return self.levels[sku, place]
        return self.in_building(sku) - sum(self.levels[sku, code] for code in LOCATIONS)

    def put(self, sku, place, units):
        """Write down that units came to a location, or left it."""
        if place is not None:
            self.levels[sku, place] += units

    @rule(product=products, counted=st.integers(0, 12), place=places, again=st.booleans())
    def take_stock(self, product, counted, place, again):
        """The count becomes the stock of its location, once; less than is sold or promised is refused."""
        sku = self.skus[product]
        act = partial(
            take_stock,
            Product.objects.get(sku=sku),
            counted,
            reason="machine",
            reference=f"count-{next(self.causes)}",
            location=self.locations.get(place),
        )
        difference = counted - self.at(sku, place)
        if difference < 0 and self.available(sku) + difference < 0:
            with pytest.raises(CountTooLow):
                act()
        else:
            assert act().expected == counted - difference
            self.stock[sku] += difference
            self.put(sku, place, difference)
            if again:
                act()

    @rule(order=orders, cart=carts, product=products)
    def die(self, order, cart, product):
        """Killed before its commit, no step of an order, a reservation or a count has done anything."""
        state, row = self.states[order], Product.objects.get(sku=self.skus[product])
        count_it = partial(take_stock, row, 99, reason="x", reference=f"die-{next(self.causes)}")
        steps: list[tuple[str, Callable[[], object]]] = [("decided", count_it)]
        if state == "placed" and order not in self.unpaid:
            steps.append(("written", partial(lifecycle.pay, order)))
        if state in ("placed", "paid"):
            steps.append(("written", partial(lifecycle.cancel, order)))
        here = {sku: self.allocated(order, sku) for sku in self.units[order]}
        if state in ("paid", "partly_shipped") and self.can_leave(order, here):
            steps.append(("written", partial(fulfillment.ship, order, None, "die")))
        if self.at(self.skus[product], None) > 0:
            steps.append(("written", partial(move_stock, row, 1, None, self.locations["east"], "die")))
        if not self.is_mixed(self.lines(cart)) and not self.shortages(self.lines(cart)):
            steps.append(("written", partial(reservations.reserve, self.lines(cart), TEN_MINUTES)))
        for step, act in steps:
            with crash_at(step), pytest.raises(Crash):
                act()

    @rule(cart=carts, way=st.sampled_from(WITH_CLAIMS))
    def die_with_a_claim(self, cart, way):
        """A buyer that is killed between its two transactions leaves a claim: the reconciler returns it."""
        lines = self.lines(cart)
        if self.is_mixed(lines):
            self.refused_as_mixed(lines, way)
            return
        if self.is_refused(lines, way):
            self.refused(lines, lambda: checkout(lines, strategy=way))
            return
        with patch("inventory.pending_claims.give_back"), crash_at("recorded"), pytest.raises(Crash):
            checkout(lines, strategy=way)
        assert audit() == [], "claimed units are accounted for"
        STRATEGIES[way]().reconcile(older_than=0)
        self.fold(way)

    def end(self, order, state):
        """Write down that an order ended and its units are back."""
        self.states[order] = state
        for sku, units in self.units[order].items():
            self.stock[sku] += units
            self.sold[sku] -= units

    def fold(self, way):
        """Put units that lie in segments back, as a shop does before it sells in another way."""
        STRATEGIES[way]().forget(Product.objects.filter(sku__in=self.skus))

    def lines(self, cart):
        """Return the cart as the checkout takes it, duplicates and all."""
        return [Line(self.skus[product], units) for product, units in cart]

    def available(self, sku, *, late_ones_count=True):
        """Return the units for sale that aren't promised; of late promises only if they still count."""
        gone = set() if late_ones_count else self.late
        live = [units for basket, units in self.promises.items() if basket not in gone]
        return self.stock[sku] + self.limits[sku] - sum(units.get(sku, 0) for units in live)

    def shortages(self, lines, **options):
        """Return what the shopkeeper would say is short."""
        return {
            Shortage(line.sku, line.quantity, self.available(line.sku, **options))
            for line in merge_lines(lines)
            if self.available(line.sku, **options) < line.quantity
        }

    def is_mixed(self, lines):
        """Return whether the prices of a cart are in several currencies."""
        return len({self.currencies[line.sku] for line in lines}) > 1

    def refused_as_mixed(self, lines, way, **options):
        """Try to buy what has no total; a copy of the stock may find it short before prices are read."""
        self.sweep()
        self.fold(way)
        short = self.shortages(lines)
        with pytest.raises((MixedCurrencies, SoldOut) if short else MixedCurrencies):
            checkout(lines, strategy=way, **options)
        self.fold(way)

    def is_refused(self, lines, way):
        """Return whether a sale is refused; one that isn't may free what has run out."""
        if STRATEGIES[way].keeps_stock:
            self.sweep()  # it refuses by a copy that only the sweep brings up to date …
            self.fold(way)  # … and that other ways of selling don't tell
        if self.shortages(lines, late_ones_count=False):
            return True
        if self.shortages(lines):
            self.free_late({line.sku for line in lines})
        return False

    def refused(self, lines, act):
        """Do what must be refused with the shortages that the shopkeeper sees."""
        with pytest.raises(SoldOut) as refused:
            act()
        assert set(refused.value.shortages) == self.shortages(lines, late_ones_count=False)
        self.sweep()  # it depends on the way of selling whether the refusal has done so

    def free_late(self, skus):
        """Cross out late promises of these products."""
        for basket in self.late:
            for sku in skus:
                self.promises[basket].pop(sku, None)

    def note(self, lines, order):
        """Write a sale down on paper."""
        total = Decimal(0)
        for line in lines:
            self.stock[line.sku] -= line.quantity
            self.sold[line.sku] += line.quantity
            total += PRICES[self.skus.index(line.sku)] * line.quantity
        self.totals[order.pk], self.states[order.pk] = total, "placed"
        self.units[order.pk] = {line.sku: line.quantity for line in merge_lines(lines)}
        self.shipped[order.pk] = dict.fromkeys(self.units[order.pk], 0)
        self.back[order.pk] = dict.fromkeys(self.units[order.pk], 0)
        self.sources[order.pk] = {}
        self.money[order.pk] = self.currencies[lines[0].sku]
        return order.pk

    @invariant()
    def the_books_agree(self):
        """Stock, ledger, items and orders are what the paper says."""
        with connection.cursor() as cursor:
            cursor.execute(TOTALS, [self.skus])
            for sku, on_hand, reserved, promised, moved, sold in cursor.fetchall():
                assert (sku, on_hand, sold) == (sku, self.stock[sku], self.sold[sku])
                assert (sku, reserved, moved) == (sku, promised, on_hand)
                assert (sku, on_hand - reserved + self.limits[sku]) == (sku, self.available(sku))
            cursor.execute(ORDERS, [self.skus])
            told = {order: rest for order, *rest in cursor.fetchall()}
            assert told == {
                order: [self.totals[order], self.money[order], self.states[order]] for order in self.totals
            }

    @invariant()
    def a_count_finds_what_the_shop_says(self):
        """The units for sale and those sold and not shipped, and nothing else, are in the building."""
        rows = with_count(Product.objects.filter(sku__in=self.skus))
        found = dict(rows.values_list("sku", "in_building"))
        assert found == {sku: self.in_building(sku) for sku in self.skus}

    @invariant()
    def every_location_has_its_units(self):
        """Levels are what the paper says, and no place has fewer units than none."""
        assert self.found_levels() == +self.levels
        assert all(self.at(sku, place) >= 0 for sku in self.skus for place in (None, *LOCATIONS))

    def found_levels(self):
        """Return the units of each product at each location that has some."""
        rows = StockLevel.objects.filter(product__sku__in=self.skus, units__gt=0)
        return Counter({(sku, code): units for sku, code, units in rows.values_list(*LEVEL)})

    @invariant()
    def the_audit_finds_nothing(self):
        """No invariant is broken after any step."""
        COUNTED["steps"] += 1
        assert audit() == []


COUNTED: Counter[str] = Counter()


LONG_ENOUGH = 7200 if "HOLDFAST_STEPS" in os.environ else 300


def run_steps(machine):
    """Take a few steps, or as many as `HOLDFAST_STEPS` says; return how many were audited."""
    wanted = int(os.environ.get("HOLDFAST_STEPS", "0"))
    examples, steps = (-(-wanted // USUAL), EXAMPLE) if wanted else (12, 15)
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


@pytest.mark.whole
@pytest.mark.timeout(LONG_ENOUGH)
@pytest.mark.django_db(transaction=True)
def test_the_shop_keeps_its_books_whatever_is_done(capsys):
    """Deliveries, sales, payments, shipments, returns, moves, counts, and deaths in the middle of each."""
    steps = run_steps(Shop)
    with capsys.disabled():
        print(f"\nsteps of the shop, each audited: {steps}")


@pytest.mark.django_db(transaction=True)
def test_the_machine_catches_a_shop_that_forgets(monkeypatch):
    """Strategies that record the sale and leave the stock alone are found out."""

    def sell(strategy, sale):
        skus = [line.sku for line in sale.lines]
        sale.record({product.sku: product for product in Product.objects.filter(sku__in=skus)})

    for name in SOUND:
        monkeypatch.setattr(STRATEGIES[name], "sell", sell)
    hurried = settings(max_examples=5, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_state_machine_as_test(Shop, settings=hurried)
