"""The lab's addresses: who is let in, what may be asked for, what is answered."""

import re

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from locking import BackendUnavailable, get_lock
from orders.lab.models import LONGEST, LabEvent, LabRun, forget_old_runs
from orders.lab.pages import supervisor
from orders.lab.pages.limits import RaceForm, variants
from orders.lab.pages.sources import colored, source
from orders.lab.pages.texts import strategies
from orders.lab.strategies import STRATEGIES

RACE = {"buyers": 4, "stock": 2, "gap": 0, "processes": 2, "strategy": "row_lock"}

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def debug(settings):
    """As `make serve` runs it."""
    settings.DEBUG = True


@pytest.fixture
def started(monkeypatch):
    """What was started, without a process."""
    asked = []

    def start(kind, parameters):
        asked.append((kind, parameters))
        return LabRun.objects.create(kind=kind, parameters=parameters)

    monkeypatch.setattr(supervisor, "start", start)
    return asked


def events(run, *said, sender="run"):
    """Let a run have said something."""
    for data in said:
        LabEvent.objects.create(run=run, sender=sender, data=data)


def test_the_page_runs_no_inline_script(client):
    """Nothing inline is in the page, and its policy forbids what might be injected."""
    page = client.get("/lab/?strategy=%3Cscript%3Ealert(1)%3C/script%3E")
    assert not re.search(rb"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", page.content)
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]


def test_the_address_fills_the_form_and_nonsense_is_named(client):
    """A link carries all parameters; one that can't be is named, and the defaults are shown."""
    page = client.get("/lab/?buyers=12&stock=3&strategy=redis_lock").content.decode()
    assert 'name="buyers" value="12"' in page
    assert re.search(r'value="redis_lock"[^>]* selected', page)
    page = client.get("/lab/?buyers=9999").content.decode()
    assert "Buyers 9999: Ensure this value is less than or equal to 60." in page
    assert 'name="buyers" value="40"' in page


@pytest.mark.parametrize("address", ["/lab/", "/lab/sources/row_lock/", "/lab/runs/0/"])
def test_outside_debug_a_permission_is_needed_to_look(client, settings, address):
    """A stranger is sent to the login, staff without the permission are refused; with it they get in."""
    settings.DEBUG = False
    assert client.get(address).status_code == 403
    login = client.get(address, headers={"Accept": "text/html"})
    assert login.status_code == 302
    assert "/admin/login/" in login.headers["Location"]
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert client.get(address).status_code == 403
    assert client.get(address, headers={"Accept": "text/html"}).status_code == 403
    client.force_login(permitted("view_labrun"))
    assert client.get(address).status_code in (200, 404)


@pytest.mark.parametrize("address", ["/lab/races/", "/lab/steps/", "/lab/runs/0/say/"])
def test_outside_debug_a_permission_is_needed_to_act(client, settings, started, address):
    """Neither a stranger nor a read-only user starts a process here."""
    settings.DEBUG = False
    assert client.post(address, RACE).status_code == 403
    client.force_login(permitted("view_labrun"))
    assert client.post(address, RACE).status_code == 403
    assert started == []


def test_outside_debug_the_permission_starts_a_race(client, settings, started):
    """A user who may add runs may run one."""
    settings.DEBUG = False
    client.force_login(permitted("add_labrun"))
    assert client.post("/lab/races/", RACE).status_code == 202


def permitted(codename: str) -> User:
    """Return a member of the staff with one permission."""
    user = User.objects.create_user(codename, is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename=codename))
    return user


@pytest.mark.parametrize("ident", ["%00", "a%00b", "%ED%A0%80"])
def test_a_run_of_no_possible_name_is_not_found(client, ident):
    """An id that the database can't look up is 404, on both addresses."""
    assert client.get(f"/lab/runs/{ident}/").status_code == 404
    assert client.post(f"/lab/runs/{ident}/say/", {}).status_code == 404


def test_a_foreign_page_starts_nothing(started):
    """A request without the CSRF token is refused."""
    assert Client(enforce_csrf_checks=True).post("/lab/races/", RACE).status_code == 403
    assert started == []


def test_a_race_is_started_with_clean_parameters(client, started):
    """202 with the id of the run; the numbers are numbers."""
    answer = client.post("/lab/races/", RACE)
    assert answer.status_code == 202
    assert answer.json()["id"] == LabRun.objects.get().pk
    assert started == [("race", RACE | {"fault": "none"})]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"buyers": 61}, "Buyers 61"),
        ({"buyers": "many"}, "Buyers many"),
        ({"stock": 101}, "Stock 101"),
        ({"gap": 301}, "Gap, ms 301"),
        ({"processes": 5}, "Processes 5"),
        ({"buyers": 2, "processes": 3}, "more processes than buyers"),
        ({"strategy": "magic"}, "Strategy magic"),
        ({"strategy": "local_lock@processes", "processes": 1}, "two or more processes"),
        ({"fault": "fire"}, "Break it fire"),
    ],
)
def test_what_is_over_the_limits_is_refused(client, started, wrong, said):
    """400 names the field, the value and the reason, and nothing is started."""
    answer = client.post("/lab/races/", RACE | wrong)
    assert answer.status_code == 400
    assert said in answer.json()["message"]
    assert started == []


def test_a_strategy_whose_server_is_down_is_refused(client, started, monkeypatch):
    """The reason is the strategy's own."""
    monkeypatch.setattr(STRATEGIES["row_lock"], "unavailable", classmethod(lambda cls: "no server is there"))
    for address in ("/lab/races/", "/lab/steps/"):
        assert "no server is there" in client.post(address, RACE).json()["message"]
    assert started == []


@pytest.mark.django_db(transaction=True)  # the supervisor's thread looks at the rows
def test_the_second_visitor_sees_since_when(client, monkeypatch):
    """While a race runs, the lock refuses the next one, and the answer says when the first began."""
    monkeypatch.setattr(supervisor, "ENDING", 0.0)
    LabRun.objects.create(kind="race", parameters=RACE)
    with get_lock(supervisor.RACE_LOCK):
        answer = client.post("/lab/races/", RACE)
    assert answer.status_code == 409
    assert re.search(r"A race is running, started \d+ s ago", answer.json()["message"])


def test_without_redis_nothing_runs(client, monkeypatch):
    """503, and no run is made: nothing runs here without its lock."""

    def unavailable(kind, parameters):
        raise BackendUnavailable("no answer")

    monkeypatch.setattr(supervisor, "start", unavailable)
    assert client.post("/lab/races/", RACE).status_code == 503
    assert not LabRun.objects.exists()


def test_events_are_read_from_where_one_was(client):
    """`after` cuts off what is known; what visitors said isn't sent back."""
    run = LabRun.objects.create(kind="race", parameters=RACE)
    events(run, {"type": "round"}, {"type": "ended", "why": "done"})
    events(run, {"say": "stop"}, sender="visitor")
    first = client.get(f"/lab/runs/{run.pk}/").json()
    assert [event["type"] for event in first["events"]] == ["round", "ended"]
    assert first["parameters"] == RACE
    rest = client.get(f"/lab/runs/{run.pk}/?after={first['events'][0]['id']}").json()
    assert [event["type"] for event in rest["events"]] == ["ended"]
    assert client.get("/lab/runs/unknown/").status_code == 404


def test_a_visitor_says_only_what_is_understood(client):
    """A, B and stop; anything else is 400, and a run that has ended is 409."""
    run = LabRun.objects.create(kind="steps", parameters={"strategy": "row_lock"})
    assert client.post(f"/lab/runs/{run.pk}/say/", {"say": "A"}).status_code == 202
    assert client.post(f"/lab/runs/{run.pk}/say/", {"say": "C"}).status_code == 400
    LabRun.objects.update(ended_at="2026-01-01T00:00Z")
    assert client.post(f"/lab/runs/{run.pk}/say/", {"say": "A"}).status_code == 409
    assert list(run.events.values_list("data", flat=True)) == [{"say": "A"}]


def test_only_the_last_runs_are_kept():
    """Old runs go with their events, the newest stay."""
    runs = [LabRun.objects.create(kind="race", parameters=RACE, ended_at=timezone.now()) for _ in range(4)]
    for run in runs:
        events(run, {"type": "round"})
    forget_old_runs(keep=2)
    assert set(LabRun.objects.all()) == set(runs[2:])
    assert LabEvent.objects.count() == 2


def test_a_session_that_goes_on_is_kept_however_many_races_begin():
    """One whose server died, and that will never tell its end, goes like any other."""
    goes_on, died = (LabRun.objects.create(kind="steps", parameters={}) for _ in range(2))
    LabRun.objects.filter(pk=died.pk).update(started_at=timezone.now() - LONGEST * 2)
    races = [LabRun.objects.create(kind="race", parameters=RACE, ended_at=timezone.now()) for _ in range(3)]
    forget_old_runs(keep=2)
    assert set(LabRun.objects.all()) == {goes_on, *races[1:]}


def test_the_source_has_its_lines_without_the_docstring(client):
    """The lines of the class, escaped and colored, under their numbers in the file."""
    reported = client.get("/lab/sources/lost_update/").json()
    text = "\n".join(html for _, html in reported["lines"])
    assert '<i class="keyword">class</i> <i class="definition">LostUpdate</i>' in text
    assert "Interleaving" not in text
    assert "A reads 10. B reads 10." in reported["interleaving"]
    assert client.get("/lab/sources/magic/").status_code == 404


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_shows_lines_that_can_be_lit(name):
    """The numbers are those of the file: the line of `def sell` is where inspect finds it."""
    (number,) = [n for n, html in source(name)["lines"] if 'class="definition">sell<' in html][:1]
    assert number == STRATEGIES[name].sell.__code__.co_firstlineno


def test_code_is_escaped():
    """Signs that mean something in HTML are shown as they are."""
    assert colored('x = "<b>" # a & b\n') == [
        'x = <i class="string">&quot;&lt;b&gt;&quot;</i> <i class="comment"># a &amp; b</i>'
    ]


def test_every_broken_strategy_has_a_fix():
    """What fixes a broken strategy is the next sound one; everything that can be raced is shown once."""
    shown = {each.name: each for each in strategies()}
    assert sorted(shown) == sorted(variants())
    for each in shown.values():
        assert shown[each.fix].sound if not each.sound else each.fix == ""
    assert (shown["lost_update"].fix, shown["expired_lease"].fix) == ("row_lock", "fenced_lock")


def test_a_strategy_that_the_settings_lack_is_not_offered(monkeypatch):
    """A strategy without a configured server isn't in the form."""
    monkeypatch.setattr(STRATEGIES["segmented"], "unconfigured", classmethod(lambda cls: "no server"))
    assert "segmented" not in variants()
    assert not RaceForm(RACE | {"strategy": "segmented"}).is_valid()


def test_the_lab_speaks_chinese(client):
    """The page and the refusals come in the visitor's language."""
    chinese = {"Accept-Language": "zh-CN"}
    assert "超卖实验室" in client.get("/lab/", headers=chinese).content.decode()
    answer = client.post("/lab/races/", RACE | {"buyers": 2, "processes": 3}, headers=chinese)
    assert "进程比买家还多" in answer.json()["message"]


@pytest.mark.parametrize("after", ["9" * 30, "9" * 5000, "²", "-1", "x"])
def test_no_client_asks_for_more_than_a_number(client, after):
    """An event that can't be is no event: an answer comes, and not an error of the server."""
    run = LabRun.objects.create(kind="race", parameters=RACE)
    assert client.get(f"/lab/runs/{run.pk}/", {"after": after}).status_code == 200
