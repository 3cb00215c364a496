"""The recorded race and its picture, the groups of the lab, its puzzles."""

import json
import re

import pytest

from orders.lab.management.commands.draw_lesson import PICTURES, SCHEMES, WORDS, file_name, lesson
from orders.lab.management.commands.record_races import IN_FULL, RECORDING
from orders.lab.pages.qr import qr_code
from orders.lab.pages.texts import grouped, strategies

RECORDED = json.loads(RECORDING.read_text())


def test_the_recording_shows_the_lesson():
    """The committed recording is of forty buyers and ten mugs, oversold by thirty, beside an exact fix."""
    races = {race["name"]: race for race in RECORDED["races"]}
    assert (RECORDED["parameters"]["buyers"], RECORDED["parameters"]["stock"]) == (40, 10)
    assert (races["lost_update"]["oversold"], races["lost_update"]["left"]) == (30, 9)
    assert races["row_lock"]["exact"]
    assert [name for name, race in races.items() if "buyers" in race] == list(IN_FULL)


@pytest.mark.parametrize("language", WORDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_picture_is_drawn_from_the_recording(scheme, language):
    """The committed picture is what the command draws, and small enough for a README."""
    path = PICTURES / file_name(scheme, language)
    assert path.read_text() == lesson(RECORDED["races"][0], SCHEMES[scheme], WORDS[language])
    assert path.stat().st_size < 400_000


def test_the_chinese_picture_has_no_english():
    """Its texts are the figures of the race and Chinese."""
    drawn = lesson(RECORDED["races"][0], SCHEMES["light"], WORDS["zh-hans"])
    texts = re.findall(r"<(?:text|tspan|title)[^>]*>([^<]*)", drawn)
    assert "30 个人为不存在的杯子付了钱" in texts
    assert not [text for text in texts if re.search("[a-z]", text)]


@pytest.mark.django_db
@pytest.mark.parametrize(("language", "name"), [("en", "lesson-light.svg"), ("zh-hans", "zh-hans.svg")])
def test_without_javascript_a_page_shows_the_picture_in_its_language(client, settings, language, name):
    """The start page and the lab have it in `noscript`."""
    settings.DEBUG = True
    client.cookies["django_language"] = language
    for address in ("/", "/lab/"):
        assert name in client.get(address).content.decode()


def test_every_strategy_of_the_lab_is_in_the_recording():
    """No dot of the plot and no line of its table is missing before the first race of a visit."""
    recorded = {race["name"] for race in RECORDED["races"]}
    assert {one.name for one in strategies()} - recorded <= {"redlock", "zookeeper_lock", "etcd_lock"}


def test_every_strategy_is_in_one_group():
    """The select offers all strategies, the broken ones first and apart."""
    shown = strategies()
    groups = grouped(shown)
    assert sorted(one.name for _, members in groups for one in members) == sorted(one.name for one in shown)
    assert all(not one.sound for one in groups[0][1])
    assert all(one.sound for _, members in groups[1:] for one in members)


def test_every_puzzle_is_of_a_strategy_that_is_offered():
    """A puzzle of a real strategy begins a session, so its strategy must be one that the lab has."""
    named = set(re.findall(r'strategy: "(\w+)"', (PICTURES / "puzzles.js").read_text()))
    assert len(named) == 6
    assert named <= {one.strategy for one in strategies()}


def test_the_qr_code_has_no_markup_of_the_address():
    """An address with markup in it leaves none in the picture."""
    assert "script" not in str(qr_code('http://x/"><script>'))


@pytest.mark.django_db
def test_a_refused_race_names_its_fields(client, settings):
    """The page marks the fields that the lab refuses, so the answer names them."""
    settings.DEBUG = True
    answer = client.post(
        "/lab/races/", {"buyers": 61, "stock": 0, "gap": 0, "processes": 2, "strategy": "row_lock"}
    )
    assert answer.status_code == 400
    assert answer.json()["fields"] == ["buyers", "stock"]
