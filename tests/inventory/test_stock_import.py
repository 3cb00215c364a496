"""Deliveries from a file: every wrong line is named, all or nothing, and once."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from inventory.models import Product, StockMovement
from inventory.stock_import import ImportRefused, import_deliveries, read_deliveries
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers

pytestmark = pytest.mark.django_db(transaction=True)
HEADING = "sku,quantity,cause,name,price"


def load(tmp_path, *lines: str, dry: bool = False) -> str:
    """Import lines of a file; return what the command says."""
    file = tmp_path / "deliveries.csv"
    file.write_text("\n".join([HEADING, *lines]), "utf-8")
    out = StringIO()
    call_command("import_stock", str(file), *(["--dry-run"] if dry else []), stdout=out)
    return out.getvalue()


def test_a_file_is_booked_once(tmp_path):
    """Known products grow, new ones are made, each line has its movement; a second time changes nothing."""
    ProductFactory.create(sku="mug")
    lines = ("mug,5,note-1,,", "pen,3,note-1,Pen,2.40")
    assert "8 units in 2 lines booked, 1 products created" in load(tmp_path, *lines)
    assert "0 units in 0 lines booked, 0 products created, 2 lines were booked before" in load(
        tmp_path, *lines
    )
    assert dict(Product.objects.values_list("sku", "on_hand")) == {"mug": 15, "pen": 3}
    assert Product.objects.get(sku="pen").price == Decimal("2.40")
    assert StockMovement.objects.filter(cause__in=["import:note-1:mug", "import:note-1:pen"]).count() == 2


def test_a_file_that_grew_books_what_is_new(tmp_path):
    """Only the line whose cause wasn't booked before."""
    ProductFactory.create(sku="mug")
    load(tmp_path, "mug,5,note-1,,")
    assert "1 units in 1 lines booked" in load(tmp_path, "mug,5,note-1,,", "mug,1,note-2,,")


def test_a_dry_run_does_nothing(tmp_path):
    """It says what would be, and finds what would be wrong."""
    assert "would be booked" in load(tmp_path, "pen,3,note-1,Pen,2.40", dry=True)
    assert not Product.objects.exists()
    with pytest.raises(CommandError, match="line 2: there is no product 'pen'"):
        load(tmp_path, "pen,3,note-1,,", dry=True)


def test_one_wrong_line_books_nothing(tmp_path):
    """The good line is rolled back with it."""
    ProductFactory.create(sku="mug")
    with pytest.raises(CommandError, match="nothing was booked\nline 3: there is no product 'pen'"):
        load(tmp_path, "mug,5,note-1,,", "pen,3,note-1,,")
    assert Product.objects.get().on_hand == 10


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("m g,1,n,,", "sku 'm g'"),
        ("lab-x,1,n,,1", "oversell lab"),
        ("mug,0,n,,", "quantity '0' must be a whole number"),
        ("mug,-1,n,,", "quantity '-1'"),
        ("mug,1.5,n,,", "quantity '1.5'"),
        ("mug,²,n,,", "quantity '²'"),
        ("mug,9999999999999,n,,", "quantity '9999999999999'"),
        ("mug,1,,,", "cause ''"),
        ("mug,1,n,,cheap", "price 'cheap'"),
        ("mug,1,n\0,,", "cause has the character NUL"),
        ("mug,1,n,Mu\0g,1", "name has the character NUL"),
        ("mug,1", "fewer fields"),
        ("mug,1,n,,,more", "more or fewer fields"),
    ],
)
def test_a_line_that_cannot_be(line, reason, django_assert_num_queries):
    """It is named by its number and reason before the database is asked; the good line beside it isn't."""
    with django_assert_num_queries(0), pytest.raises(ImportRefused) as refused:
        read_deliveries([HEADING, "mug,1,fine,,", line])
    assert len(refused.value.errors) == 1
    assert refused.value.errors[0].startswith("line 3: ")
    assert reason in refused.value.errors[0]


def test_every_wrong_line_is_told_at_once():
    """Two faults, two sentences; and one cause for one product twice is a third."""
    with pytest.raises(ImportRefused) as refused:
        read_deliveries([HEADING, "mug,0,a,,", "mug,1,b,,", "mug,2,b,,"])
    assert [error[:7] for error in refused.value.errors] == ["line 2:", "line 4:"]


@pytest.mark.parametrize(
    ("heading", "reason"), [("sku,cause", "lacks quantity"), (HEADING + ",x", "'x'"), ("", "lacks sku")]
)
def test_a_heading_that_cannot_be(heading, reason):
    """It is said which columns there are."""
    with pytest.raises(ImportRefused, match=reason):
        read_deliveries([heading] if heading else [])


@pytest.mark.parametrize("price", ["-1", "Infinity", "1e50"])
def test_a_price_that_the_model_refuses(tmp_path, price):
    """The product's own rules speak, with the line's number."""
    with pytest.raises(CommandError, match="line 2: "):
        load(tmp_path, f"pen,3,n,Pen,{price}")
    assert import_deliveries([]).booked == 0


def test_a_file_that_is_not_there(tmp_path):
    """It is named."""
    with pytest.raises(CommandError, match="can't be read"):
        call_command("import_stock", str(tmp_path / "none.csv"))


def test_rows_are_locked_in_primary_key_order():
    """Kept out of the row with the lowest key, an import holds none of the others."""
    first, second = ProductFactory.create(sku="zebra"), ProductFactory.create(sku="ant")
    lines = read_deliveries([HEADING, "ant,1,note-1,,", "zebra,1,note-1,,"])
    with buyers() as start, transaction.atomic():
        Product.objects.select_for_update().get(pk=first.pk)
        b = start("B", partial(import_deliveries, lines))
        assert b.ends_or_waits() == "waits"
        assert Product.objects.select_for_update(nowait=True).get(pk=second.pk)
        transaction.set_rollback(True)
    assert b.outcome.error is None
