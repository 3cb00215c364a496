"""`manage.py stock …`, on each database."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models import F

from inventory import CauseUsed, NotThere, Stock, retention, tasks
from inventory.audit import audit
from inventory.models import Audit, Entry, Level, Movement, Reservation
from inventory.reservations import expire_all
from inventory.triggers import allow_changes
from tests.stock.test_verbs import balances, overdue


@pytest.fixture(autouse=True)
def _alias(using: str, settings: Any) -> None:
    settings.INVENTORY = {"default": {"DATABASE": using}}


def run(*args: str) -> str:
    """Return what the command writes."""
    out = io.StringIO()
    call_command("stock", *args, stdout=out)
    return out.getvalue()


def tamper(using: str, **balances: Any) -> None:
    """Write balances past the ledger."""
    level = Level.objects.using(using).get(item__sku="mug")
    with transaction.atomic(using=using), allow_changes(using, level.pk):
        Level.objects.using(using).filter(pk=level.pk).update(**balances)


def fill(stock: Stock) -> None:
    """Have units in every state."""
    stock.receive({"mug": 10, "pen": 3}, cause="po-1")
    stock.sell({"mug": 3}, cause="o-1")
    stock.ship({"mug": 1}, cause="p-1", of="o-1")
    stock.reserve({"mug": 2}, seconds=900, cause="cart-1")
    stock.hold_back({"mug": 1}, cause="h-1")


def test_a_clean_audit_says_how_many_levels_it_compared(stock: Stock) -> None:
    fill(stock)
    assert run("audit") == "2 levels are what their movements say\n"


def test_an_audit_names_every_difference(stock: Stock, using: str) -> None:
    fill(stock)
    tamper(using, available=F("available") + 4, committed=0)
    out = io.StringIO()
    with pytest.raises(CommandError, match="2 differences"):
        call_command("stock", "audit", stdout=out)
    assert out.getvalue().splitlines() == [
        "mug at default: available is 8, and 4 by its movements",
        "mug at default: committed is 0, and 2 by its movements",
    ]


def test_an_audit_compares_what_is_reserved_with_the_live_reservations(stock: Stock, using: str) -> None:
    fill(stock)
    stock.reserve({"pen": 1}, seconds=900, cause="cart-2")
    Reservation.objects.using(using).filter(entry__cause="cart-1").update(state="released")
    out = io.StringIO()
    with pytest.raises(CommandError, match="1 differences"):
        call_command("stock", "audit", stdout=out)
    assert out.getvalue() == "mug at default: reserved is 2, and 0 by its live reservations\n"
    assert run("reconcile") == ""  # the movements are what the balance says: nothing is believed instead
    assert balances(stock)[:2] == (4, 2)


def test_the_timers_task_ends_overdue_reservations_of_each_database(stock: Stock, using: str) -> None:
    stock.receive("mug", 3, cause="po-1")
    overdue(stock.reserve({"mug": 1}, seconds=900).id, using)
    stock.reserve({"mug": 1}, seconds=900)
    assert tasks.expire_reservations() == 1
    assert tasks.expire_reservations() == 0
    assert balances(stock)[:2] == (2, 1)


def test_an_audit_looks_at_what_moved_since_the_last(
    stock: Stock, using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inventory.audit.MARGIN", 0)
    fill(stock)
    assert audit(using).checked == 2
    assert audit(using).checked == 0
    stock.sell({"pen": 1}, cause="o-2")
    assert audit(using).checked == 1
    assert audit(using, everything=True).checked == 2
    assert Audit.objects.using(using).count() == 4


def test_reconciling_believes_the_ledger_and_makes_no_movement_up(stock: Stock, using: str) -> None:
    fill(stock)
    tamper(using, available=14)
    before = Movement.objects.using(using).count()
    assert run("reconcile") == "corrected: mug at default: available is 14, and 4 by its movements\n"
    assert (balances(stock), Movement.objects.using(using).count()) == ((4, 2, 2, 1), before)
    assert run("reconcile") == ""


def test_reconciling_asks_for_a_count_where_the_ledger_cannot_be_right(stock: Stock, using: str) -> None:
    fill(stock)
    with transaction.atomic(using=using), allow_changes(using):
        Movement._base_manager.using(using).filter(entry__cause="po-1", level__item__sku="mug").update(
            quantity=1
        )
    with pytest.raises(CommandError, match=r"count these.*: mug at default"):
        run("reconcile")
    assert balances(stock) == (4, 2, 2, 1)


def test_overdue_reservations_are_ended_in_batches(stock: Stock, using: str) -> None:
    stock.receive("mug", 10, cause="po-1")
    for _ in range(5):
        overdue(stock.reserve({"mug": 1}, seconds=900).id, using)
    live = stock.reserve({"mug": 1}, seconds=900)
    assert expire_all(using, limit=2) == 5
    assert (balances(stock), stock.held(live.id).state) == ((9, 1, 0, 0), "live")
    assert run("expire") == "0 reservations expired\n"


def test_a_file_is_received_once(stock: Stock, tmp_path: Path) -> None:
    path = tmp_path / "po-1.csv"
    path.write_text("sku,quantity,location\nmug,5,\npen,2,shop\nmug,1,\n")
    assert run("import", str(path)) == "8 units received\n"
    assert run("import", str(path)) == "0 units received\n"
    assert (stock.available("mug"), stock.available("pen", location="shop")) == (6, 2)
    path.write_text("sku,quantity\nmug,50\n")
    with pytest.raises(CommandError, match=r"po-1\.csv:default:0"):
        run("import", str(path))
    assert run("import", str(path), "--cause", "po-2") == "50 units received\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [("mug,5\n", "first line is sku,quantity"), ("sku,quantity\nmug,5\npen,1.5\n", "line 3: pen.*'1.5'"),
     ("sku,quantity\n,5\n", "line 2"), ("sku,quantity\nmug\n", "line 2"), ("sku,quantity\nmug,-1\n", "'-1'")],
)  # fmt: skip
def test_a_bad_file_is_refused_before_anything_is_received(
    stock: Stock, using: str, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "po.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=said):
        run("import", str(path))
    assert not Entry.objects.using(using).exists()


FAR = datetime(2100, 1, 1, tzinfo=UTC)


def test_archived_movements_leave_balances_and_causes(stock: Stock, using: str) -> None:
    fill(stock)
    stock.receive("mug", 1, cause="po-2")
    for number in range(9):
        stock.sell({"mug": 1}, cause=f"s-{number}")
        stock.cancel(cause=f"c-{number}", of=f"s-{number}")
    before, movements = balances(stock), Movement.objects.using(using).filter(level__item__sku="mug").count()
    ((_, gone),) = list(retention.archive(FAR, using))
    assert gone > 15
    assert Movement.objects.using(using).filter(level__item__sku="mug").count() < movements - 15
    assert balances(stock) == before
    assert run("audit", "--all").startswith("2 levels are")
    assert stock.sell({"mug": 1}, cause="s-3").repeated
    with pytest.raises(CauseUsed):
        stock.sell({"mug": 2}, cause="s-3")
    assert list(retention.archive(FAR, using)) == []


def test_what_is_still_open_is_kept(stock: Stock, using: str) -> None:
    fill(stock)
    for number in range(9):
        stock.adjust("mug", 1, cause=f"found-{number}")
    list(retention.archive(FAR, using))
    stock.ship(cause="p-2", of="o-1")
    with pytest.raises(NotThere):
        stock.restock("mug", 4, cause="r-1", of="o-1")
    stock.restock("mug", 3, cause="r-1", of="o-1")
    held = Reservation.objects.using(using).get(entry__cause="cart-1")
    stock.held(held.pk).sell(cause="o-2")
    assert stock.levels("mug")[0].reserved == 0
    assert run("audit", "--all").startswith("2 levels are")


def test_archiving_goes_on_where_it_was_stopped(
    stock: Stock, using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    stock.receive("mug", 1, cause="po-1")
    for number in range(35):
        stock.adjust("mug", 1, cause=f"a-{number}")
    assert next(retention.archive(FAR, using))[1] > 0  # stopped behind the first batch
    assert sum(gone for _, gone in retention.archive(FAR, using)) > 0
    assert balances(stock) == (36, 0, 0, 0)
    assert run("audit", "--all").startswith("1 levels are")


def test_only_what_is_old_is_archived(stock: Stock, using: str) -> None:
    fill(stock)
    assert run("archive", "--months", "1") == "0 movements replaced by opening balances\n"
    with transaction.atomic(using=using), allow_changes(using):
        old = datetime.now(UTC) - timedelta(days=100)
        Entry._base_manager.using(using).filter(cause__in=["po-1", "o-1"]).update(created_at=old)
    assert retention._last_entry(datetime.now(UTC) - timedelta(days=50), using) == (
        Entry.objects.using(using).get(cause="o-1").pk
    )
    with pytest.raises(CommandError, match="at least 1"):
        run("archive", "--months", "0")
