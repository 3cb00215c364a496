import gettext
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

import orders
from orders.http.problems import PROBLEM_TYPES
from tests.factories import ProductFactory

APP = Path(orders.__file__).parent
CATALOGS = APP / "locale" / "zh_Hans" / "LC_MESSAGES"
PAGES = ("/", "/shop/", "/problems/")

pytestmark = pytest.mark.django_db


def catalog(path: Path) -> dict[Any, str]:
    """Return the texts of a compiled catalog; a text with a plural has a tuple as its key."""
    with path.open("rb") as file:
        return gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("address", PAGES)
def test_pages_run_no_inline_script(client, address):
    """Nothing inline is in a page, and its policy forbids what might be injected."""
    ProductFactory(name='"><script>alert(1)</script>')
    page = client.get(address)
    assert page.status_code == 200
    assert not re.search(rb"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", page.content)
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]


@pytest.mark.parametrize("address", PAGES)
def test_pages_are_read_only(client, address):
    """A page is for looking: 405 for anything that would write."""
    assert client.post(address).status_code == 405


@pytest.mark.parametrize(("debug", "shown"), [(True, True), (False, False)])
def test_the_demo_login_is_shown_in_debug_only(client, debug, shown):
    """The start page tells a login where it exists, and nowhere else."""
    with override_settings(DEBUG=debug):
        page = client.get("/").content.decode()
    assert ("The demo login is admin" in page) is shown


def test_the_start_page_leads_everywhere(client):
    """Every address that the start page links or names is one that answers."""
    ProductFactory(sku="mug")
    page = client.get("/").content.decode()
    for address in {"/shop/", "/problems/", "/admin/", "/products/"}:
        assert f'href="{address}"' in page
        assert client.get(address).status_code in (200, 302)
    assert "/checkout/" in page


@pytest.mark.parametrize(("debug", "offered"), [(True, True), (False, False)])
def test_strategies_are_offered_in_debug_only(client, debug, offered):
    """The shop lets a person choose how it sells in DEBUG."""
    ProductFactory()
    with override_settings(DEBUG=debug):
        page = client.get("/shop/").content.decode()
    assert (">combined<" in page) == offered


def test_an_empty_shop_says_how_to_fill_it(client):
    """Without products the shop names the command."""
    page = client.get("/shop/").content.decode()
    assert "seed_demo" in page


def test_every_problem_is_explained_at_its_address(client):
    """The `type` of each problem leads to a section of the page of problems."""
    page = client.get("/problems/").content.decode()
    assert all(f'id="{kind.slug}"' in page for kind in PROBLEM_TYPES)


@pytest.mark.parametrize(
    ("address", "text"),
    [("/", "绝不卖出没有的货"), ("/shop/", "商店"), ("/problems/", "现在太忙"), ("/texts.js", "已下单")],
)
def test_pages_speak_chinese(client, address, text):
    """A browser that asks for Chinese gets it, from the pages and from the script's texts."""
    page = client.get(address, headers={"Accept-Language": "zh-CN,zh;q=0.9"})
    assert text in page.content.decode() or json.dumps(text)[1:-1] in page.content.decode()


def test_the_language_can_be_chosen(client):
    """The buttons of the bar change the language and stay on the page."""
    answer = client.post("/i18n/setlang/", {"language": "zh-hans"}, headers={"Referer": "/shop/"})
    assert answer.headers["Location"] == "/shop/"
    assert '<html lang="zh-hans">' in client.get("/shop/").content.decode()


def test_json_stays_english(client):
    """The details of a problem don't change with the reader's language: programs and logs read them."""
    answer = client.get("/checkout/", headers={"Accept-Language": "zh-CN"})
    assert answer.json()["title"] == "Method not allowed"


def test_every_text_of_the_pages_is_translated():
    """No text of the templates, of the problems or of the script is missing from the Chinese catalog."""
    sources = [
        *APP.glob("templates/**/*.html"),
        *APP.glob("static/orders/*.js"),
        *APP.glob("static/orders/lab/*.js"),
    ]
    found = re.compile(r"""(?:translate |n?gettext\()(["'])(.+?)\1""")
    texts = {match[2] for path in sources for match in found.finditer(path.read_text())}
    texts |= {kind.title for kind in PROBLEM_TYPES} | {kind.meaning for kind in PROBLEM_TYPES}
    known = catalog(CATALOGS / "django.mo") | catalog(CATALOGS / "djangojs.mo")
    plain = {str(text[0]) if isinstance(text, tuple) else text for text in known}
    assert len(texts) > 50
    assert texts <= plain


@override_settings(DEBUG=True)
def test_the_shop_is_in_the_readers_language(client):
    """The demo's products have Chinese names."""
    ProductFactory(sku="mug", name="Enamel mug")
    assert "搪瓷杯" in client.get("/shop/", headers={"Accept-Language": "zh-CN"}).content.decode()


@pytest.mark.skipif(not shutil.which("msgfmt"), reason="msgfmt (package gettext) is not installed")
@pytest.mark.parametrize(
    "source",
    sorted(APP.parent.glob("[io]*/locale/*/LC_MESSAGES/*.po")),
    ids=lambda path: f"{path.parts[-5]}-{path.stem}",
)
def test_compiled_texts_are_up_to_date(source, tmp_path):
    """The committed .mo is what msgfmt makes of the committed .po, and every text of it is translated."""
    subprocess.run(["msgfmt", "-o", tmp_path / "new.mo", source], check=True)
    assert catalog(tmp_path / "new.mo") == catalog(source.with_suffix(".mo"))
    done = subprocess.run(
        ["msgfmt", "--statistics", "-o", "/dev/null", source], capture_output=True, text=True, check=True
    )
    assert "untranslated" not in done.stderr
    assert "fuzzy" not in done.stderr


def test_prices_keep_their_point(client):
    """The script reads prices from the page, so no language may write them with a comma."""
    ProductFactory(price="1234.50")
    with override_settings(LANGUAGES=[("de", "Deutsch")], LANGUAGE_CODE="de"):
        page = client.get("/shop/").content.decode()
    assert 'data-price="1234.50"' in page
