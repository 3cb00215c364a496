import base64
import json
import re
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import clear_script_prefix, reverse, set_script_prefix
from django.utils import timezone

from locking import get_lock, get_semaphore
from locking.admin.held import signer
from locking.core.handler import locks
from locking.exceptions import LockLost
from locking.inspection.held import held_locks
from locking.models import Fence, LockEvent
from tests.backends import any_engine

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/locking/heldlock/"


@pytest.fixture
def held():
    """A lock that is held during the test."""
    lease = get_lock("order:42", fenced=True).acquire()
    yield lease
    with suppress(LockLost):  # a test may have broken it
        lease.release()


@pytest.fixture
def client_with(client, django_user_model):
    """Return a client of a staff user with these permissions."""

    def client_with(*permissions):
        user = django_user_model.objects.create_user("grace", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client.force_login(user)
        return client

    return client_with


NESTED = base64.urlsafe_b64encode(b"[" * 2900).decode().rstrip("=")
SURROGATE = base64.urlsafe_b64encode(rb'["default", "lock", "\ud800", "b"]').decode().rstrip("=")


def ident_of(lease, kind="lock"):
    """Return what addresses say of a hold."""
    return signer().sign_object(["default", lease.key, lease.owner, kind])


def address(lease, what="change"):
    """Return the address of a page about a hold."""
    return reverse(f"admin:locking_heldlock_{what}", args=[quote(ident_of(lease))])


def link_of(lease):
    """The list's link to the page of one hold, relative to the list."""
    return f'href="{address(lease).removeprefix(LIST)}"'


def left():
    """Return the seconds left of the only lock."""
    row: Any = held_locks().rows[0]
    return row.remaining


def text_of(answer):
    """Return the answer's page."""
    return answer.content.decode()


def test_the_list_shows_what_is_held(admin_client, held):
    """Name, owner and token of a held lock are on the page, and a link to its own."""
    page = text_of(admin_client.get(LIST))
    assert "order:42" in page
    assert all(f">{part}</span>" in page for part in held.owner.split(":"))
    assert str(held.fencing_token) in page
    assert link_of(held) in page


def test_an_empty_list_says_so(admin_client):
    """Nothing held is an answer, not an empty page."""
    assert "Nothing is held." in text_of(admin_client.get(LIST))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("prefix=order:", True),
        ("prefix=other", False),
        ("q=der:4", True),
        ("q=unknown", False),
        ("state=held", True),
        ("state=gone", False),
        ("kind=lock", True),
        ("kind=read", False),
        ("older_than=3600", False),
        ("host=nowhere", False),
    ],
)
def test_filters(admin_client, held, query, found):
    """Each filter keeps the rows that it says."""
    assert (link_of(held) in text_of(admin_client.get(f"{LIST}?{query}"))) is found


@pytest.mark.parametrize("query", ["state=broken", "kind=x", "older_than=soon", "backend=none", "bogus=1"])
def test_a_filter_that_cannot_be_is_no_server_error(admin_client, query):
    """Nonsense in the address leads back to the list."""
    assert admin_client.get(f"{LIST}?{query}").status_code in (200, 302)


def test_pages(admin_client):
    """The fifty-first lock is on the second page."""
    held = [get_lock(f"n:{number:03}").acquire() for number in range(51)]
    first, second = text_of(admin_client.get(LIST)), text_of(admin_client.get(f"{LIST}?p=2"))
    assert "n:000" in first
    assert "n:050" not in first
    assert "n:050" in second
    assert "51 held locks" in first
    for lease in held:
        lease.release()


@pytest.mark.parametrize("number", ["2", "3", "0", "-1", "9" * 30])
def test_a_page_that_is_not_there_is_the_first(admin_client, held, number):
    """Locks end while their last page, which reloads itself, is open."""
    page = admin_client.get(f"{LIST}?p={number}")
    assert page.status_code == 200
    assert "order:42" in text_of(page)
    far = json.loads(text_of(admin_client.get(f"{LIST}json/?offset=500")))
    assert (far["rows"], far["total"]) == ([], 1)


def test_what_was_broken_stays_in_the_audit_whatever_ends_the_request(
    admin_client, atomic_requests, held, monkeypatch
):
    """Also under ATOMIC_REQUESTS: no rollback takes back the fence and the audit of a lock that is gone."""
    second = get_lock("order:43", fenced=True).acquire()
    engine = any_engine()
    release = engine.force_release

    def force_release(key, owner):
        if key == second.leases[0].key:
            raise RuntimeError("the worker's time limit")
        return release(key, owner)

    monkeypatch.setattr(engine, "force_release", force_release)
    admin_client.raise_request_exception = False
    chosen = {"action": "release_selected", "_selected_action": [ident_of(held), ident_of(second.leases[0])]}
    assert admin_client.post(LIST, {**chosen, "reason": "x", "post": "yes"}).status_code == 500
    assert not get_lock("order:42").locked()
    assert [event.name for event in LockEvent.objects.filter(done=True)] == ["order:42"]
    assert Fence.objects.filter(name="order:42", token=held.fencing_token).exists()
    second.release()


def test_a_lock_of_any_name_can_be_shown_and_broken(admin_client):
    """PostgreSQL keeps no NUL: the audit has a sign for it."""
    lease = get_lock("coupon:\0").acquire()
    assert admin_client.get(address(lease)).status_code == 200
    assert admin_client.post(address(lease, "release"), {"reason": "x"}).status_code == 302
    assert not get_lock("coupon:\0").locked()
    assert LockEvent.objects.get(done=True).name == "coupon:␀"


def test_the_audit_asks_the_database_for_no_time_zone(admin_client, held):
    """MySQL knows none until its tables are loaded, and Django fails on what it answers then."""
    admin_client.post(address(held, "release"), {"reason": "x"})
    with timezone.override("Europe/Berlin"), CaptureQueriesContext(connection) as asked:
        assert admin_client.get("/admin/locking/lockevent/?at__gte=2020-01-01 00:00:00Z").status_code == 200
    assert not [query["sql"] for query in asked if "AT TIME ZONE" in query["sql"]]


def test_json(admin_client, held):
    """The same list for programs."""
    reported = json.loads(text_of(admin_client.get(f"{LIST}json/?prefix=order:")))
    assert [(row["name"], row["owner"], row["state"]) for row in reported["rows"]] == [
        ("order:42", held.owner, "held")
    ]
    assert (reported["total"], reported["problems"]) == (1, [])
    assert admin_client.get(f"{LIST}json/?kind=x").status_code == 400


def test_the_page_of_one_hold(admin_client, held):
    """All facts, and buttons to what may be done."""
    page = text_of(admin_client.get(address(held)))
    assert held.owner in page
    assert address(held, "release") in page
    assert address(held, "extend") in page


def test_force_release(admin_client, held):
    """Asks for a reason, breaks the lock, advances the fence, and writes audit and history."""
    assert "doesn't stop the holder" in text_of(admin_client.get(address(held, "release")))
    assert "required" in text_of(admin_client.post(address(held, "release"), {"reason": " "}))
    assert get_lock("order:42").locked()
    assert admin_client.post(address(held, "release"), {"reason": "worker 7 died"}).status_code == 302
    assert not get_lock("order:42").locked()
    event = LockEvent.objects.get()
    assert (event.actor, event.reason, event.owner, event.done) == (
        "admin",
        "worker 7 died",
        held.owner,
        True,
    )
    assert Fence.objects.get().token == held.fencing_token
    assert LogEntry.objects.get().change_message == "Force released: worker 7 died"
    assert "worker 7 died" in text_of(admin_client.get("/admin/locking/lockevent/"))


def test_a_lock_taken_again_after_the_page_was_drawn_is_not_broken(admin_client):
    """The address names the owner that the page showed; its successor keeps the lock."""
    with get_lock("order:42") as shown:
        page = address(shown, "release")
    with get_lock("order:42") as newer:
        answer = admin_client.post(page, {"reason": "too late"}, follow=True)
        assert "That hold has ended" in text_of(answer)
        newer.confirm()
        assert held_locks().rows[0].owner == newer.owner


def test_bulk_release_breaks_what_was_ticked_and_nothing_newer(admin_client):
    """Of three ticked holds one has ended and been taken again: two are broken, the third is left alone."""
    first, second = get_lock("a").acquire(), get_semaphore("b", 3).acquire()
    with get_lock("c") as ended:
        ticked = [ident_of(first), ident_of(second, "semaphore"), ident_of(ended)]
    with get_lock("c"):
        form = {"action": "release_selected", "_selected_action": ticked, "index": "0"}
        page = text_of(admin_client.post(LIST, form))
        assert "Break these locks?" in page
        assert page.count('name="_selected_action"') == 2
        del form["index"]
        answer = admin_client.post(LIST, {**form, "reason": "clearing up"}, follow=True)
        assert "Broken: 2; ended by themselves: 1" in text_of(answer)
        assert [row.name for row in held_locks().rows] == ["c"]
    assert LockEvent.objects.filter(done=True).count() == 2


def test_more_than_a_hundred_at_once_are_refused(admin_client, held):
    """A bulk action takes up to a hundred rows."""
    form = {"action": "release_selected", "_selected_action": [ident_of(held)] * 101, "reason": "all"}
    assert "up to 100" in text_of(admin_client.post(LIST, form, follow=True))
    assert get_lock("order:42").locked()


def test_extend(admin_client, held):
    """Others are kept out for longer; a length that would shorten the lease is explained."""
    assert "wouldn&#x27;t extend" in text_of(admin_client.post(address(held, "extend"), {"ttl": "2"}))
    assert admin_client.post(address(held, "extend"), {"ttl": "200", "reason": ""}).status_code == 302
    assert left() > 190
    assert LockEvent.objects.get().action == "extend"


METHODS = ("get", "post", "put", "patch", "delete", "head", "options")


def test_a_view_only_user_can_release_by_no_request(client_with, held):
    """Every address of held locks, by every method, with everything a form could send: the lock stays."""
    client = client_with("view_heldlock")
    addresses = [LIST, f"{LIST}json/", f"{LIST}add/"]
    addresses += [address(held, what) for what in ("change", "release", "extend", "history", "delete")]
    data = {
        "action": "release_selected", "_selected_action": [ident_of(held)], "reason": "x", "ttl": "100",
        "post": "yes", "index": "0",
    }  # fmt: skip
    for each in addresses:
        for method in METHODS:
            kind = {"content_type": "application/json"} if method in ("put", "patch", "delete") else {}
            body = json.dumps(data) if kind else data
            answer = getattr(client, method)(each, body, **kind)
            assert answer.status_code < 500
    assert get_lock("order:42").locked()
    assert left() <= 30
    assert not LockEvent.objects.exists()
    page = text_of(client.get(address(held)))
    assert address(held, "release") not in page
    assert address(held, "extend") not in page
    assert "release_selected" not in text_of(client.get(LIST))


@pytest.mark.parametrize("permissions", [(), ("release_heldlock", "extend_heldlock")])
def test_who_may_not_look_may_do_nothing(client_with, held, permissions):
    """Without the permission to view, the others are worth nothing."""
    client = client_with(*permissions)
    for each in (LIST, f"{LIST}json/", address(held), address(held, "release"), address(held, "extend")):
        assert client.get(each).status_code == 403
        assert client.post(each, {"reason": "x", "ttl": "100"}).status_code in (403, 405)
    assert get_lock("order:42").locked()


def test_permission_to_release_is_not_permission_to_extend(client_with, held):
    """Each action has a permission of its own."""
    client = client_with("view_heldlock", "release_heldlock")
    assert client.post(address(held, "extend"), {"ttl": "100"}).status_code == 403
    assert client.post(address(held, "release"), {"reason": "may"}).status_code == 302
    assert not get_lock("order:42").locked()


def test_a_post_without_its_token_is_refused(admin_user, held):
    """The interventions are behind Django's protection against forged requests."""
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(address(held, "release"), {"reason": "forged"}).status_code == 403
    assert get_lock("order:42").locked()


def test_names_are_escaped_wherever_they_are_shown(admin_client):
    """A lock's name is untrusted text: on no page it becomes markup."""
    evil = "<script>alert(1)</script>\"'&"
    lease = get_lock(evil).acquire()
    ticked = {"action": "release_selected", "_selected_action": [ident_of(lease)]}
    pages = [
        admin_client.get(each)
        for each in (LIST, *(address(lease, w) for w in ("change", "release", "extend")))
    ]
    pages.append(admin_client.post(LIST, {**ticked, "index": "0"}))
    pages.append(admin_client.get(f"{LIST}?prefix={evil}&q={evil}&host={evil}"))
    pages.append(admin_client.post(address(lease, "release"), {"reason": evil}, follow=True))
    pages += [
        admin_client.get(each) for each in ("/admin/locking/lockevent/", "/admin/locking/fence/", "/admin/")
    ]
    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in text_of(page)
    assert "application/json" in admin_client.get(f"{LIST}json/")["Content-Type"]


def test_no_page_has_inline_code(admin_client, held):
    """A strict content security policy finds nothing to forbid in what these pages add."""
    for each in (LIST, address(held), address(held, "release"), address(held, "extend")):
        page = text_of(admin_client.get(each))
        assert not re.search(r"<script(?![^>]*\b(src|type=.application/json))[^>]*>", page)
        assert not re.search(r"\son\w+=", page)
        assert "style=" not in page


def test_a_backend_that_is_down_is_reported(admin_client, backend_down):
    """Its rows are missing and the page says why; the others are there."""
    with get_lock("order:42"):
        page = text_of(admin_client.get(LIST))
        assert "What down holds is not known" in page
        assert "order:42" in page
        assert "What down holds is not known" in text_of(admin_client.get(f"{LIST}?backend=down"))
        reported = json.loads(text_of(admin_client.get(f"{LIST}json/?backend=down")))
        assert reported["problems"][0]["backend"] == "down"
    gone = reverse(
        "admin:locking_heldlock_release", args=[quote(signer().sign_object(["down", "a", "b", "lock"]))]
    )
    assert "answer" in text_of(admin_client.post(gone, {"reason": "x"}, follow=True))


@pytest.mark.parametrize("page", ["change", "release", "extend"])
def test_an_old_page_of_a_backend_that_cannot_list_says_so(admin_client, settings, page):
    """The address is from before the alias had this backend."""
    settings.LOCKING = {"default": {"BACKEND": "locking.backends.database.TransactionLockBackend"}}
    ident = quote(signer().sign_object(["default", "a", "b", "lock"]))
    old = reverse(f"admin:locking_heldlock_{page}", args=[ident])
    assert "list what is held" in text_of(admin_client.get(old, follow=True))


def test_links_are_right_below_any_prefix(admin_client, held):
    """Also where the project is mounted at an address that has a number in it."""
    set_script_prefix("/0/")
    try:
        page = text_of(admin_client.get(LIST, SCRIPT_NAME="/0"))
    finally:
        clear_script_prefix()
    links = re.findall(r'href="([^"]*/(?:change|release)/)"', page)
    assert links
    assert all(urljoin(f"/0{LIST}?q=a", link).startswith(f"/0{LIST}") for link in links)


def test_a_backend_that_cannot_list_says_so(admin_client, monkeypatch, held):
    """An unavailable list is shown as such, not as nothing held."""
    monkeypatch.setattr(
        type(locks["default"]), "held", lambda self, **_: (_ for _ in ()).throw(self.unsupported("list"))
    )
    page = text_of(admin_client.get(LIST))
    assert "can't be listed" in page
    assert "Nothing is held." not in page


@pytest.mark.parametrize(
    "ident", ["", "x", "W10", "bnVsbA", "_5F_5F", "é", "W1siYSIsImIiLCJjIiwiZCJdXQ", NESTED, SURROGATE]
)
def test_an_address_that_means_nothing_is_answered(admin_client, ident):
    """Whatever stands in the address leads back to the list."""
    for what in ("change", "release", "extend"):
        assert admin_client.get(f"{LIST}{ident}/{what}/").status_code in (302, 404)


def test_audit_and_fences_are_read_only(admin_client, held):
    """They can be looked at, and no request adds, changes or deletes a row."""
    admin_client.post(address(held, "release"), {"reason": "x"})
    event, fence = LockEvent.objects.get(), Fence.objects.get()
    for model, row in (("lockevent", event), ("fence", fence)):
        base = f"/admin/locking/{model}/"
        page = reverse(f"admin:locking_{model}_change", args=[row.pk])
        assert admin_client.get(base).status_code == 200
        assert admin_client.get(page).status_code == 200
        assert admin_client.post(page, {"reason": "y", "token": 1}).status_code == 403
        assert admin_client.post(f"{base}add/", {}).status_code == 403
        assert admin_client.post(page.replace("/change/", "/delete/"), {"post": "yes"}).status_code == 403
    assert LockEvent.objects.get().reason == "x"


def test_chinese(admin_client, held):
    """The pages speak simplified Chinese where the reader does."""
    page = text_of(admin_client.get(LIST, headers={"accept-language": "zh-hans"}))
    assert "持有中的锁" in page


def test_an_outage_is_not_an_empty_page_of_waiters(admin_client, backend_down):
    """The page says which backend can't tell, and not that no caller waits; the JSON isn't complete."""
    page = text_of(admin_client.get(f"{LIST}waiting/"))
    assert "What down holds is not known" in page
    assert "Who waits for a lock is not known." in page
    assert "No lock has waiters." not in page
    assert admin_client.get(f"{LIST}json/").json()["complete"] is False


def test_a_search_that_ended_early_finds_the_exact_name_and_does_not_deny_others(
    admin_client, held, monkeypatch
):
    """An older lock was all that was looked at: the page says so instead of `no held lock matches`."""
    monkeypatch.setattr("locking.inspection.held.MOST_SEARCHED", 0)
    assert link_of(held) in text_of(admin_client.get(f"{LIST}?q=order:42"))
    page = text_of(admin_client.get(f"{LIST}?q=42"))
    assert "No match among the oldest 5,000 holds." in page
    assert "No held lock matches." not in page


def test_a_hold_has_a_timeline_and_says_what_a_release_would_do(admin_client, held):
    """When it was acquired and what operators did, to the second and with the zone; who would be next."""
    admin_client.post(address(held, "extend"), {"ttl": "200", "reason": "a long night"})
    page = text_of(admin_client.get(address(held)))
    assert page.index("a long night") < page.index("Acquired"), "the latest comes first"
    assert re.search(r"<td>20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \w+</td><td>Acquired</td>", page)
    assert "No waiter has named itself" in page
    assert "no fencing token" not in page
    with get_lock("plain", fenced=False) as plain:
        row = held_locks(search="plain").rows[0]
        page = text_of(admin_client.get(address(plain, "release")))
        assert ("no fencing token" in page) == (not row.token)


def test_names_that_begin_so_are_left_out(admin_client, held):
    """A lesson's or a load test's locks don't hide the others."""
    with get_lock("lab:sku:1"):
        page = text_of(admin_client.get(f"{LIST}?without=lab:"))
        rows = admin_client.get(f"{LIST}json/?without=lab:").json()["rows"]
    assert "lab:sku:1" not in page
    assert "order:42" in page
    assert [row["name"] for row in rows] == ["order:42"]


def test_an_event_has_its_seconds_and_zone(admin_client, held):
    """Logs are compared by them."""
    admin_client.post(address(held, "release"), {"reason": "worker 7 died"})
    page = text_of(admin_client.get("/admin/locking/lockevent/"))
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \w+", page)
    assert "By time" in re.sub(r"\s+", " ", page)  # the title of its filter


@pytest.mark.parametrize("query", ["kind=%00", "state=%00", "prefix=%00", "q=%00", "host=%00", "backend=%00"])
def test_a_filter_that_no_lock_can_match_is_no_error_of_the_server(admin_client, held, query):
    """A NUL in the address leads to the list, or to an empty one."""
    assert admin_client.get(f"{LIST}?{query}").status_code in (200, 302)
