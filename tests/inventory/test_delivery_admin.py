"""Deliveries in the admin: a file is previewed, then booked by the command's rules, all or nothing, once."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse
from openpyxl import Workbook

from inventory.models import Product, StockMovement
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)

IMPORT = reverse("admin:inventory_stockmovement_import")
CONFIRM = reverse("admin:inventory_stockmovement_process_import")
HEADING = ("sku", "quantity", "cause", "name", "price")
CSV, XLSX = "0", "1"


def csv(*rows: tuple[Any, ...], heading: tuple[str, ...] = HEADING) -> bytes:
    """Return a CSV file."""
    return "\n".join(",".join(map(str, row)) for row in (heading, *rows)).encode()


def xlsx(*rows: tuple[Any, ...]) -> bytes:
    """Return a sheet, whose numbers are numbers and whose empty cells are empty."""
    book = Workbook()
    assert book.active is not None
    for row in (HEADING, *rows):
        book.active.append(row)
    file = BytesIO()
    book.save(file)
    return file.getvalue()


def upload(client, file: bytes, kind: str = CSV) -> str:
    """Upload a file; return the page of its preview."""
    sent = SimpleUploadedFile("deliveries", file)
    page = client.post(IMPORT, {"import_file": sent, "format": kind, "resource": ""})
    assert page.status_code == 200
    return str(page.content.decode())


def confirm(client, page: str) -> Any:
    """Confirm a preview, as its button does."""
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
    return client.post(CONFIRM, hidden, follow=True)


def stock() -> dict[str, int]:
    """Return the units on hand by SKU."""
    return dict(Product.objects.values_list("sku", "on_hand"))


@pytest.mark.parametrize(("kind", "write"), [(CSV, csv), (XLSX, xlsx)])
def test_a_file_is_previewed_and_then_booked_once(admin_client, kind, write):
    """The preview adds nothing to the stock; the confirmation does; the same file again is skipped."""
    ProductFactory.create(sku="mug")
    file = write(("mug", 5, "note-1", "", ""), ("pen", 3, "note-1", "Pen", 2.40))
    page = upload(admin_client, file, kind)
    assert "pen" in page
    assert stock() == {"mug": 10}
    assert "2 new" in confirm(admin_client, page).content.decode()
    assert stock() == {"mug": 15, "pen": 3}
    assert StockMovement.objects.filter(cause__startswith="import:note-1:").count() == 2
    assert "2 skipped" in confirm(admin_client, upload(admin_client, file, kind)).content.decode()
    assert stock() == {"mug": 15, "pen": 3}


def test_every_wrong_row_is_told_and_nothing_can_be_confirmed(admin_client):
    """Reasons of the command, without a traceback; the good row is not booked either."""
    ProductFactory.create(sku="mug")
    rows = ("mug", 5, "note-1", "", ""), ("mug", 0, "note-2", "", ""), ("pen", 1, "note-1", "", "")
    page = upload(admin_client, csv(*rows))
    assert "quantity &#x27;0&#x27; must be a whole number" in page
    assert "there is no product &#x27;pen&#x27;" in page
    assert "Traceback" not in page
    assert "import_file_name" not in page
    assert stock() == {"mug": 10}


def test_the_page_names_the_columns(admin_client):
    """Above the form, before anything is uploaded."""
    assert "sku, quantity, cause, name, price" in admin_client.get(IMPORT).content.decode()


def test_a_wrong_row_is_told_in_the_readers_language(admin_client):
    """Each reason is Chinese on a Chinese page."""
    admin_client.cookies["django_language"] = "zh-hans"
    rows = (
        ("mug", "five", "n", "", ""),
        ("m g", 1, "n", "", ""),
        ("pen", 1, "n", "", ""),
        ("cup", 1, "", "", ""),
    )
    page = upload(admin_client, csv(*rows))
    for reason in ("的整数", "个字母、数字", "填写价格即可新建", "例如送货单号"):
        assert reason in page


@pytest.mark.parametrize("kind", [CSV, XLSX])
def test_a_file_that_is_no_table_is_refused(admin_client, kind):
    """The page says so; nothing fails."""
    page = upload(admin_client, b"\xff\xfe\x00nonsense", kind)
    assert "errorlist" in page
    assert not StockMovement.objects.exists()


def test_a_wrong_heading_is_told(admin_client):
    """Which columns are missing, and which there are."""
    page = upload(admin_client, csv(("mug", 1), heading=("sku", "quantity")))
    assert "the heading lacks cause" in page
    assert "Traceback" not in page


def test_what_became_wrong_after_the_preview_books_nothing(admin_client):
    """A product that was deleted meanwhile: the whole file is refused, and no success is claimed."""
    ProductFactory.create(sku="mug")
    gone = Product.objects.create(sku="pen", name="Pen", price=1)
    page = upload(admin_client, csv(("mug", 5, "note-1", "", ""), ("pen", 1, "note-1", "", "")))
    gone.delete()
    answer = confirm(admin_client, page).content.decode()
    assert "Nothing was booked." in answer
    assert "there is no product &#x27;pen&#x27;" in answer
    assert stock() == {"mug": 10}


def test_formulas_and_markup_are_shown_as_text(admin_client):
    """What a file holds is escaped in the preview."""
    page = upload(admin_client, csv(("pen", 1, "<b>note</b>", "<script>", "1.00")))
    assert "<script>" not in page.partition("import-preview")[2].partition("</table>")[0]


def test_importing_needs_the_permission_to_add_movements(client, django_user_model):
    """Who may only look at the ledger finds no import."""
    user = django_user_model.objects.create_user("clerk", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_stockmovement"))
    client.force_login(user)
    assert IMPORT not in client.get(reverse("admin:inventory_stockmovement_changelist")).content.decode()
    assert client.get(IMPORT).status_code == 403
    assert client.post(CONFIRM, {}).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="add_stockmovement"))
    client.force_login(django_user_model.objects.get(pk=user.pk))
    assert client.get(IMPORT).status_code == 200
