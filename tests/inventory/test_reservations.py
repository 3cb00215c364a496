"""Reservations: promised units can't be sold to others, and end once: used, released, or expired."""

from __future__ import annotations

import uuid
from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from inventory.domain import Busy, InvalidCart, LimitReached, Line, SoldOut
from inventory.models import CustomerPurchase, Product, StockMovement, StockReservation
from inventory.reservations import MAX_TTL, ReservationGone, expire_overdue, extend, find, release, reserve
from inventory.rows import lock_rows
from inventory.services import change_stock
from inventory.strategies import STRATEGIES, Strategy
from orders.models import Order
from orders.services import checkout, checkout_reserved
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = timedelta(minutes=1)
SOUND = [
    name
    for name, strategy in STRATEGIES.items()
    if strategy.sound and not strategy.unconfigured() and strategy.race_products == 1
]


@pytest.fixture
def mug():
    """A product of ten units."""
    return ProductFactory.create(sku="mug")


def end_of(basket: uuid.UUID) -> None:
    """Let the time of a reservation be over."""
    past = timezone.now() - timedelta(seconds=1)
    StockReservation.objects.filter(basket=basket).update(expires_at=past)


def stock(sku: str = "mug") -> tuple[int, int]:
    """Return the units on hand, in segments too, and reserved, after a look at the live reservations."""
    product = Product.objects.get(sku=sku)
    live = StockReservation.objects.filter(product=product, state="live").values_list("quantity", flat=True)
    assert product.reserved == sum(live)
    return totals_of(sku).left, product.reserved


@pytest.mark.parametrize("strategy", SOUND)
def test_nobody_buys_what_is_reserved(mug, strategy):
    """Eight of ten are promised: three are refused with two available, two are sold."""
    reserve([Line("mug", 8)], MINUTE)
    with pytest.raises(SoldOut) as refused:
        checkout([Line("mug", 3)], strategy)
    assert refused.value.shortages[0].available == 2
    checkout([Line("mug", 2)], strategy)
    assert stock() == (8, 8)


@pytest.mark.parametrize("strategy", [name for name in SOUND if not STRATEGIES[name].keeps_stock])
def test_an_overdue_reservation_stands_in_nobodys_way(mug, strategy):
    """Nobody has swept: the buyer who needs the units gets them in the same checkout."""
    end_of(reserve([Line("mug", 8)], MINUTE).basket)
    checkout([Line("mug", 10)], strategy)
    assert stock() == (0, 0)
    assert StockReservation.objects.get().state == "expired"


def test_more_overdue_reservations_than_one_transaction_ends_stand_in_nobodys_way(mug, monkeypatch):
    """However many are overdue, the buyer of the last units ends them all, a batch at a time."""
    monkeypatch.setattr("inventory.reservations.expire_overdue", partial(expire_overdue, limit=2))
    for _ in range(5):
        end_of(reserve([Line("mug", 1)], MINUTE).basket)
    checkout([Line("mug", 10)], "conditional_update")
    assert stock() == (0, 0)


def test_an_overdue_reservation_that_another_buyer_ends_stands_in_nobodys_way(mug):
    """B has read that all ten are promised; before it can end that, A has, and bought one: B gets another."""
    end_of(reserve([Line("mug", 10)], MINUTE).basket)
    buy = partial(checkout, [Line("mug", 1)], "version_cas")
    with buyers() as start:
        b = start("B", buy, "read").reaches("read")
        assert start("A", buy).ends().error is None
        assert b.ends().error is None
    assert stock() == (8, 0)


def test_a_buyer_waits_for_overdue_reservations_no_longer_than_for_other_rows(mug, monkeypatch):
    """Somebody keeps the row of the product whose reservation is overdue: the buyer is told *busy*."""
    monkeypatch.setattr(Strategy, "wait", 0.05)
    end_of(reserve([Line("mug", 8)], MINUTE).basket)
    with buyers() as start, transaction.atomic():
        lock_rows([mug.pk])
        buyer = start("A", partial(checkout, [Line("mug", 10)], "conditional_update"))
        assert isinstance(buyer.ends().error, Busy)
    assert stock() == (10, 8)


def test_reserving_frees_what_is_overdue(mug):
    """A second basket gets the units of one whose time is over, and a third is refused."""
    end_of(reserve([Line("mug", 10)], MINUTE).basket)
    reserve([Line("mug", 10)], MINUTE)
    with pytest.raises(SoldOut):
        reserve([Line("mug", 1)], MINUTE)
    assert stock() == (10, 10)


def test_a_reservation_becomes_an_order_once(mug):
    """Its units leave the stock with the order; a second order of it is refused with what became of it."""
    basket = reserve([Line("mug", 4), Line("mug", 2)], MINUTE, customer="ann").basket
    receipt = checkout_reserved(basket)
    assert Order.objects.get(pk=receipt.id).customer == "ann"
    assert stock() == (4, 0)
    with pytest.raises(ReservationGone, match="used"):
        checkout_reserved(basket)
    with pytest.raises(ReservationGone, match="used"):
        release(basket)
    assert totals_of("mug").balanced


def test_a_release_waits_for_a_locked_row_for_so_long(mug):
    """Somebody keeps the product's row: the basket is told *busy*, and can be released later."""
    basket = reserve([Line("mug", 4)], MINUTE).basket
    with buyers() as start:
        with transaction.atomic():
            lock_rows([mug.pk])
            busy = start("A", partial(release, basket, wait=0.05))
            assert isinstance(busy.ends().error, Busy)
        release(basket)
    assert stock() == (10, 0)


def test_a_released_reservation_is_gone(mug):
    """Its units are available at once, and it can't be used or released again."""
    basket = reserve([Line("mug", 4)], MINUTE).basket
    release(basket)
    assert stock() == (10, 0)
    for step in (release, checkout_reserved):
        with pytest.raises(ReservationGone, match="released"):
            step(basket)


def test_an_overdue_reservation_cannot_be_used(mug):
    """Also when nobody has taken its units yet: the buyer is told to reserve again."""
    basket = reserve([Line("mug", 4)], MINUTE).basket
    end_of(basket)
    with pytest.raises(ReservationGone, match="expired"):
        checkout_reserved(basket)
    assert expire_overdue() == 1
    assert expire_overdue() == 0
    assert stock() == (10, 0)
    assert not Order.objects.exists()


def test_an_overdue_reservation_has_expired_for_a_release_too(mug):
    """A release that comes too late frees the units as the sweep does, and says what `find` says."""
    basket = reserve([Line("mug", 4)], MINUTE).basket
    end_of(basket)
    with pytest.raises(ReservationGone, match="expired"):
        release(basket, record=pytest.fail)
    assert stock() == (10, 0)
    assert find(basket).state == StockReservation.objects.get().state == "expired"


def test_a_reservation_that_never_was():
    """It is called unknown."""
    with pytest.raises(ReservationGone, match="unknown"):
        checkout_reserved(uuid.uuid4())
    with pytest.raises(ReservationGone, match="unknown"):
        release(uuid.uuid4())


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(days=8)])
def test_a_ttl_that_cannot_be(mug, ttl, django_assert_num_queries):
    """It is refused with the bounds before the first query."""
    with django_assert_num_queries(0), pytest.raises(ValueError, match="at most 7 days"):
        reserve([Line("mug", 1)], ttl)


def test_a_basket_that_cannot_be(django_assert_num_queries):
    """So is an empty one."""
    with django_assert_num_queries(0), pytest.raises(InvalidCart):
        reserve([], MINUTE)


def test_all_lines_or_none(mug):
    """One short line leaves nothing reserved."""
    ProductFactory.create(sku="pen", on_hand=1)
    with pytest.raises(SoldOut):
        reserve([Line("mug", 1), Line("pen", 2)], MINUTE)
    assert (stock(), stock("pen")) == ((10, 0), (1, 0))


def test_two_baskets_want_the_last_unit():
    """B waits for A's row, then finds it promised."""
    ProductFactory.create(sku="mug", on_hand=1)
    with buyers() as start:
        a = start("A", partial(reserve, [Line("mug", 1)], MINUTE), "written").reaches("written")
        b = start("B", partial(reserve, [Line("mug", 1)], MINUTE))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, SoldOut)
    assert stock() == (1, 1)


def test_its_time_ends_while_it_is_used(mug):
    """The order holds the rows; the sweep waits, finds the reservation used, and frees nothing."""
    basket = reserve([Line("mug", 4)], MINUTE).basket
    with buyers() as start:
        a = start("A", partial(checkout_reserved, basket), "recorded").reaches("recorded")
        b = start("B", partial(release, basket))
        assert b.ends_or_waits() == "waits"
        assert a.ends().error is None
        assert isinstance(b.ends().error, ReservationGone)
    assert stock() == (6, 0)


def test_it_is_used_while_it_is_swept(mug):
    """The release holds the rows; the order waits, finds nothing promised any more, and isn't written."""
    basket = reserve([Line("mug", 4)], MINUTE).basket
    with buyers() as start:
        a = start("A", partial(release, basket), "committed").reaches("committed")
        b = start("B", partial(checkout_reserved, basket))
        assert isinstance(b.ends().error, ReservationGone)
        a.ends()
    assert stock() == (10, 0)
    assert not Order.objects.exists()


def test_two_orders_of_one_reservation(mug):
    """One is served, one is told that it was used; the units leave once."""
    basket = reserve([Line("mug", 4)], MINUTE).basket
    with buyers() as start:
        a = start("A", partial(checkout_reserved, basket), "recorded").reaches("recorded")
        b = start("B", partial(checkout_reserved, basket))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, ReservationGone)
    assert stock() == (6, 0)
    assert Order.objects.count() == 1


def test_a_basket_that_dies_in_the_middle_promised_nothing(mug):
    """Killed before its commit, it leaves neither a row nor a reserved unit."""
    with buyers() as start:
        start("A", partial(reserve, [Line("mug", 4)], MINUTE), "written").reaches("written").dies()
    assert stock() == (10, 0)
    assert not StockReservation.objects.exists()


def test_crossed_baskets_do_not_deadlock(mug):
    """Mug and pen, pen and mug: both lock in the order of the keys, and the second waits its turn."""
    ProductFactory.create(sku="pen")
    with buyers() as start:
        crossed = [[Line("mug", 1), Line("pen", 1)], [Line("pen", 1), Line("mug", 1)]]
        a = start("A", partial(reserve, crossed[0], MINUTE), "written").reaches("written")
        b = start("B", partial(reserve, crossed[1], MINUTE))
        assert b.ends_or_waits() == "waits"
        assert a.ends().error is None
        assert b.ends().error is None
    assert (stock(), stock("pen")) == ((10, 2), (10, 2))


def test_rows_are_locked_inside_a_transaction_only(mug):
    """Outside one the lock would end with the statement: it is refused instead of being worth nothing."""
    with pytest.raises(TransactionManagementError):
        lock_rows([mug.pk])


@pytest.mark.parametrize("strategy", SOUND)
def test_a_delivery_beside_a_sale_is_not_lost(mug, strategy):
    """It comes between the decision and the writing, from somebody who asks for no lock: both count."""
    with buyers() as start:
        buy = partial(checkout, [Line("mug", 1)], strategy)
        a = start("A", buy, "decided").reaches("decided")
        b = start("B", partial(change_stock, mug, StockMovement.Kind.RECEIVED, 5, "note:1"))
        b.ends_or_waits()
        assert a.ends().error is None
        assert b.ends().error is None
    assert totals_of("mug").left == 14
    assert totals_of("mug").balanced


# What one customer may have.


@pytest.fixture
def limited(mug):
    """Of the mug one customer may have two."""
    Product.objects.update(customer_limit=2)


def counts(customer: str) -> tuple[int, int]:
    """Return what a customer has bought and has reserved."""
    return CustomerPurchase.objects.values_list("units", "reserved").get(customer=customer)


def test_what_is_reserved_counts_for_the_limit(limited):
    """Two are reserved: neither another reservation nor a checkout gets a third; another customer does."""
    reserve([Line("mug", 2)], MINUTE, "ann")
    for more in (partial(reserve, ttl=MINUTE), partial(checkout, strategy="row_lock")):
        with pytest.raises(LimitReached) as refused:
            more([Line("mug", 1)], customer="ann")
        assert (refused.value.bought, refused.value.limit, refused.value.requested) == (2, 2, 1)
    reserve([Line("mug", 2)], MINUTE, "bob")
    assert stock() == (10, 4)
    assert counts("ann") == (0, 2)


def test_what_is_bought_counts_for_the_limit_of_a_reservation(limited):
    """One is bought: one more may be reserved, two may not."""
    checkout([Line("mug", 1)], "row_lock", customer="ann")
    with pytest.raises(LimitReached):
        reserve([Line("mug", 2)], MINUTE, "ann")
    reserve([Line("mug", 1)], MINUTE, "ann")
    assert counts("ann") == (1, 1)


def test_a_reservation_that_is_bought_is_not_counted_twice(limited):
    """Both units become bought ones, and are all that the customer gets."""
    checkout_reserved(reserve([Line("mug", 2)], MINUTE, "ann").basket)
    assert counts("ann") == (2, 0)
    with pytest.raises(LimitReached):
        reserve([Line("mug", 1)], MINUTE, "ann")


def test_a_reservation_may_be_bought_by_another(limited):
    """Then it is the buyer's limit that counts, and a refusal leaves the reservation alive."""
    checkout([Line("mug", 1)], "row_lock", customer="bob")
    basket = reserve([Line("mug", 2)], MINUTE, "ann").basket
    with pytest.raises(LimitReached):
        checkout_reserved(basket, customer="bob")
    assert (counts("ann"), stock()) == ((0, 2), (9, 2))
    checkout_reserved(basket, customer="eve")
    assert (counts("ann"), counts("eve")) == ((0, 0), (2, 0))


def test_a_released_reservation_does_not_count(limited):
    """Its units may be reserved again at once."""
    release(reserve([Line("mug", 2)], MINUTE, "ann").basket)
    reserve([Line("mug", 2)], MINUTE, "ann")
    assert counts("ann") == (0, 2)


def test_an_overdue_reservation_does_not_count_when_reserving(limited):
    """Nobody has swept: the customer's own next basket ends it."""
    end_of(reserve([Line("mug", 2)], MINUTE, "ann").basket)
    reserve([Line("mug", 2)], MINUTE, "ann")
    assert (counts("ann"), stock()) == ((0, 2), (10, 2))


@pytest.mark.parametrize("strategy", SOUND)
def test_an_overdue_reservation_does_not_count_when_buying(limited, strategy):
    """The same for a checkout, whichever way it sells."""
    end_of(reserve([Line("mug", 2)], MINUTE, "ann").basket)
    checkout([Line("mug", 2)], strategy, customer="ann")
    assert (counts("ann"), stock()) == ((2, 0), (8, 0))


def test_a_customers_own_overdue_reservation_does_not_count_behind_those_of_others(limited, monkeypatch):
    """Older ones of other customers fill the first batch: the customer's own is ended all the same."""
    monkeypatch.setattr("inventory.reservations.expire_overdue", partial(expire_overdue, limit=1))
    for customer in ("bob", "eve", "ann"):
        end_of(reserve([Line("mug", 2)], MINUTE, customer).basket)
    checkout([Line("mug", 2)], "row_lock", customer="ann")
    assert counts("ann") == (2, 0)


def test_an_overdue_reservation_does_not_count_when_another_is_bought(limited):
    """Nor when the limit was lowered to what a second basket has, and that is bought."""
    Product.objects.update(customer_limit=4)
    end_of(reserve([Line("mug", 2)], MINUTE, "ann").basket)
    basket = reserve([Line("mug", 2)], MINUTE, "ann").basket
    Product.objects.update(customer_limit=2)
    checkout_reserved(basket)
    assert counts("ann") == (2, 0)


def test_nobody_in_particular_reserves_nothing_limited(limited):
    """As with a checkout: one nobody can't be told from another."""
    with pytest.raises(LimitReached):
        reserve([Line("mug", 1)], MINUTE)
    assert stock() == (10, 0)


def test_a_basket_over_one_limit_counts_for_none(limited):
    """All lines or none: the pen of a refused basket is neither reserved nor counted."""
    ProductFactory.create(sku="pen")
    with pytest.raises(LimitReached):
        reserve([Line("mug", 3), Line("pen", 1)], MINUTE, "ann")
    assert (stock(), stock("pen")) == ((10, 0), (10, 0))
    assert not CustomerPurchase.objects.exists()


@pytest.mark.parametrize("strategy", ["row_lock", "segmented_rows"])
def test_a_purchase_and_a_reservation_at_once(limited, strategy):
    """Neither sees the other's units yet: the reservation waits for the purchase's count, and is refused."""
    with buyers() as start:
        buy = partial(checkout, [Line("mug", 2)], strategy, customer="ann")
        a = start("A", buy, "recorded").reaches("recorded")
        b = start("B", partial(reserve, [Line("mug", 1)], MINUTE, "ann"))
        assert b.ends_or_waits() == "waits"
        assert a.ends().error is None
        assert isinstance(b.ends().error, LimitReached)
    assert counts("ann") == (2, 0)


# Extending --------------------------------------------------------------------------------------------------


def test_a_reservation_lasts_a_week_at_most(mug):
    """However often it is extended: units that nobody else can buy for longer are gone."""
    made = reserve([Line("mug", 1)], MINUTE)
    StockReservation.objects.update(created_at=timezone.now() - MAX_TTL + 2 * MINUTE)
    longer = extend(made.basket, MAX_TTL)
    row = StockReservation.objects.get()
    assert longer.expires_at == row.expires_at == row.created_at + MAX_TTL


def test_every_line_of_a_basket_is_extended(mug):
    """Lines of one basket end together."""
    ProductFactory.create(sku="pen")
    made = reserve([Line("mug", 1), Line("pen", 2)], MINUTE)
    extend(made.basket, 5 * MINUTE)
    assert StockReservation.objects.values("expires_at").distinct().count() == 1
    assert find(made.basket).lines == (Line("mug", 1), Line("pen", 2))


@pytest.mark.parametrize("ttl", [timedelta(0), -MINUTE, MAX_TTL + MINUTE])
def test_an_extension_that_cannot_be(mug, ttl):
    """The value and the bounds are named."""
    with pytest.raises(ValueError, match="ttl"):
        extend(reserve([Line("mug", 1)], MINUTE).basket, ttl)


def test_a_sweep_does_not_end_what_was_extended_meanwhile(mug):
    """The sweep has seen an overdue reservation; before it has the row, the reservation is extended."""
    made = reserve([Line("mug", 1)], MINUTE)
    end_of(made.basket)
    with buyers() as start, transaction.atomic():
        Product.objects.select_for_update().get()
        sweep = start("sweep", expire_overdue)
        assert sweep.ends_or_waits() == "waits"
        StockReservation.objects.update(expires_at=timezone.now() + MINUTE)
        transaction.on_commit(lambda: sweep.ends())
    assert sweep.outcome.result == 0
    assert stock() == (10, 1)


def test_an_extension_and_a_checkout_of_one_basket_do_not_deadlock(mug):
    """Both lock the products first: the second waits, and finds that the reservation was used."""
    made = reserve([Line("mug", 1)], MINUTE)
    with buyers() as start:
        a = start("A", partial(checkout_reserved, made.basket), "written").reaches("written")
        b = start("B", partial(extend, made.basket, 5 * MINUTE))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, ReservationGone)
    assert find(made.basket).state == "used"
