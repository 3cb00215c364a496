"""Deadlines are the database's: a worker whose clock is an hour off changes nothing that is decided."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from django.apps import apps
from django.conf import settings as django_settings
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection
from django.db.models import Q
from django.test import Client, RequestFactory
from django.utils import timezone

from inventory import ReservationGone, SoldOut
from inventory import reservations as promises
from inventory.models import Reservation
from locking.inspection.held import HeldLock
from locking.models import LockEvent
from orders import tasks
from orders.after_sale import lifecycle
from orders.http import idempotency
from orders.http.idempotency import forget_old_keys
from orders.http.problems import Problem
from orders.http.rate_limit import limit_customer
from orders.lab.models import LabRun
from orders.models import IdempotencyKey, Order
from orders.selling.checkout import checkout_reserved, place
from orders.selling.reservations import reserve
from tests.clocks import wall_clock_off
from tests.factories import ProductFactory
from tests.orders.shelf import lose

pytestmark = pytest.mark.django_db(transaction=True)

OFF = pytest.mark.parametrize("off", [1, -1], ids=["ahead", "behind"])
TEN_MINUTES = timedelta(minutes=10)
CART = [("mug", 8)]


@pytest.fixture(autouse=True)
def mug(settings) -> None:
    """A product of ten units; a lock's server has a clock of its own and is no matter here."""
    settings.CHECKOUT_STRATEGY = "conditional_update"
    ProductFactory.create(sku="mug")


def database_now() -> datetime:
    """Return the database's time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
        return now


def buy(quantity=1, **headers):
    """Return the answer to a checkout of mugs through HTTP."""
    body = json.dumps({"lines": [{"sku": "mug", "quantity": quantity}]})
    return Client().post("/checkout/", body, content_type="application/json", headers=headers).json()


@OFF
@pytest.mark.parametrize("strategy", ["conditional_update", "combined", "redis_lock"])
def test_an_order_has_its_whole_payment_window(off, strategy):
    """An order of a worker with a wrong clock is dated and due by the database, and the answer says so."""
    before = database_now()
    with wall_clock_off(off):
        receipt = place([("mug", 1)], strategy)
    order, after = Order.objects.get(), database_now()
    assert before <= order.created_at <= after
    assert order.pay_by == order.created_at + timedelta(seconds=django_settings.PAYMENT_WINDOW)
    assert datetime.fromisoformat(receipt.body["created_at"]) == order.created_at
    assert datetime.fromisoformat(receipt.body["pay_by"]) == order.pay_by


@OFF
def test_a_fresh_order_is_not_expired(off):
    """A worker with a wrong clock sells and sweeps: the order isn't overdue, and can be paid."""
    with wall_clock_off(off):
        order = place([("mug", 1)]).order
        assert lifecycle.expire_overdue() == 0
    assert lifecycle.expire_overdue() == 0
    assert lifecycle.pay(order.pk).state == Order.State.PAID


@OFF
def test_a_repeated_key_tells_the_same_times(off):
    """The answer kept under a key has the same dates as the first answer."""
    with wall_clock_off(off):
        first = buy(**{"Idempotency-Key": "k"})
    assert first["pay_by"] is not None
    assert buy(**{"Idempotency-Key": "k"}) == first


@OFF
def test_a_reservation_holds_for_its_ttl(off):
    """It ends at its time by the database's clock, whichever process makes, sweeps, needs or buys it."""
    before = database_now()
    with wall_clock_off(off):
        made = reserve(CART, TEN_MINUTES)
    assert before + TEN_MINUTES <= made.expires_at <= database_now() + TEN_MINUTES
    with wall_clock_off(off):
        assert tasks.sweep_reservations() == 0
        with pytest.raises(SoldOut):
            reserve(CART, TEN_MINUTES)
        assert checkout_reserved(made.id).order.pk


@OFF
def test_an_overdue_reservation_is_overdue_everywhere(off):
    """It can't be used by a worker whose clock is wrong, and its sweep ends it."""
    made = reserve(CART, TEN_MINUTES)
    Reservation.objects.update(expires_at=database_now() - timedelta(seconds=1))
    with wall_clock_off(off):
        with pytest.raises(ReservationGone):
            checkout_reserved(made.id)
        assert tasks.sweep_reservations() == 1


@OFF
@pytest.mark.parametrize("wrong", ["writer", "sweeper"])
def test_keys_are_kept_for_their_time(settings, off, wrong):
    """Neither an order's key nor a refusal's is forgotten early, whichever of the two has the wrong clock."""
    settings.IDEMPOTENCY_KEPT = settings.IDEMPOTENCY_REFUSALS_KEPT = 1800
    with wall_clock_off(off if wrong == "writer" else 0):
        buy(**{"Idempotency-Key": "sold"})
        lose(9)
        buy(**{"Idempotency-Key": "refused"})
    with wall_clock_off(off if wrong == "sweeper" else 0):
        assert forget_old_keys() == 0
    assert IdempotencyKey.objects.count() == 2
    IdempotencyKey.objects.update(created_at=database_now() - timedelta(seconds=1801))
    with wall_clock_off(off):
        assert forget_old_keys() == 2


@pytest.mark.parametrize(
    ("module", "shows"),
    [
        (promises, lambda settings: test_a_reservation_holds_for_its_ttl(1)),
        (idempotency, lambda settings: test_keys_are_kept_for_their_time(settings, 1, "sweeper")),
    ],
)
def test_a_deadline_by_the_workers_clock_is_found_out(settings, monkeypatch, module, shows):
    """Mutants: a module that takes the worker's time for the database's fails the tests above."""
    monkeypatch.setattr(module, "Now", timezone.now)
    with pytest.raises((AssertionError, ReservationGone, pytest.fail.Exception)):
        shows(settings)


def test_an_order_that_is_overdue_by_the_workers_clock_is_found_out(monkeypatch):
    """Mutant: a sweep that takes the worker's time for the database's ends an order that was just placed."""
    with wall_clock_off(1):
        monkeypatch.setattr(lifecycle, "_OVERDUE", Q(pay_by__lte=timezone.now()))
    with pytest.raises(AssertionError):
        test_a_fresh_order_is_not_expired(1)


@OFF
def test_a_rate_is_one_for_all_workers(settings, off):
    """A customer has no second allowance with the worker whose clock is wrong."""
    settings.CHECKOUT_RATE = 2
    request = RequestFactory().post("/checkout/")
    for hours in (0, off):
        with wall_clock_off(hours):
            limit_customer(request, "", "ann")
    with pytest.raises(Problem) as refused, wall_clock_off(off):
        limit_customer(request, "", "ann")
    assert 1 <= int(refused.value.headers["Retry-After"]) <= 60
    cache.clear()


@OFF
def test_a_run_of_the_lab_is_not_taken_for_dead(off, admin_client):
    """A run that began a moment ago is at work, whichever worker is asked."""
    for writer, reader in ((off, 0), (0, off)):
        with wall_clock_off(writer):
            run = LabRun.objects.create(kind=LabRun.Kind.RACE, parameters={})
        with wall_clock_off(reader):
            assert admin_client.get(f"/lab/runs/{run.pk}/").json()["events"] == []


@OFF
@pytest.mark.parametrize("wrong", ["writer", "pruner"])
def test_the_audit_of_locks_is_pruned_by_one_clock(off, wrong):
    """A lock event of this moment is younger than an hour, whichever of the two has the wrong clock."""
    with wall_clock_off(off * 2 if wrong == "writer" else 0):
        hold = HeldLock(backend="default", name="a", key="a", kind="lock", owner="o:1")
        LockEvent.of(hold, LockEvent.Action.FORCE_RELEASE, "why", "ada").save()
    with wall_clock_off(off * 2 if wrong == "pruner" else 0):
        call_command("prune_lock_events", "--older-than", "1h")
    assert LockEvent.objects.count() == 1
    assert abs(LockEvent.objects.get().at - database_now()) < timedelta(minutes=1)


@pytest.mark.parametrize("app", ["inventory", "locking", "orders"])
def test_no_column_is_dated_by_a_worker(app):
    """Dates come from the database; `Fence.updated_at`, which is only shown, is the one exception."""
    fields = [field for model in apps.get_app_config(app).get_models() for field in model._meta.fields]
    dated = [f for f in fields if getattr(f, "auto_now", False) or getattr(f, "auto_now_add", False)]
    dated += [field for field in fields if "now" in getattr(field.default, "__name__", "")]
    assert [str(field) for field in dated] == (["locking.Fence.updated_at"] if app == "locking" else [])
