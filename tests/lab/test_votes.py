"""The vote of a lecture over HTTP: who may open it, who may vote, and what is counted."""

from __future__ import annotations

import pytest
from django.test import Client

from orders.lab.models import LabRun
from orders.lab.pages import votes

pytestmark = pytest.mark.django_db


@pytest.fixture
def opened(client, settings):
    """A vote about 40 buyers of ten mugs: its page and its counts."""
    settings.DEBUG = True
    made = client.post("/lab/votes/", {"buyers": 40, "stock": 10}).json()
    return made["address"].removeprefix("http://testserver"), made["counts"]


def test_a_phone_counts_once(client, opened):
    """Another phone has a vote of its own; the last one of each counts."""
    address, counts = opened
    phones = [Client(), Client()]
    for phone, guess in ((0, 2), (1, 2), (0, 1), (0, 0)):
        assert phones[phone].post(address, {"guess": guess}).status_code == 302
    assert client.get(counts).json() == {"votes": [1, 0, 1]}
    assert 'value="0" aria-pressed="true"' in phones[0].get(address).content.decode()


@pytest.mark.parametrize("guess", ["3", "-1", "", "x", "01"])
def test_a_guess_that_is_not_offered(client, opened, guess):
    """It is refused, and counts nowhere."""
    address, counts = opened
    assert Client().post(address, {"guess": guess}).status_code == 404
    assert client.get(counts).json() == {"votes": [0, 0, 0]}


def test_a_ballot_box_is_full_at_some_time(client, opened, monkeypatch):
    """An address that was passed on can't fill the table."""
    monkeypatch.setattr(votes, "MOST_WORDS", 1)
    assert [Client().post(opened[0], {"guess": 0}).status_code for _ in range(2)] == [302, 404]


def test_strangers_vote_and_no_more(opened, settings):
    """Without a login a phone opens the page; it opens no vote, sees no counts, and no race as one."""
    settings.DEBUG = False
    stranger = Client()
    assert stranger.get(opened[0]).status_code == 200
    assert stranger.get(opened[1]).status_code == 403
    assert stranger.post("/lab/votes/", {"buyers": 40, "stock": 10}).status_code == 403
    race = LabRun.objects.create(kind="race", parameters={})
    assert stranger.get(f"/lab/votes/{race.pk}/").status_code == 404


@pytest.mark.parametrize("asked", [{"buyers": 2, "stock": 1}, {"buyers": "x", "stock": 1}, {}])
def test_a_question_that_cannot_be(client, settings, asked):
    """Refused; no vote is opened."""
    settings.DEBUG = True
    assert client.post("/lab/votes/", asked).status_code == 400
    assert not LabRun.objects.exists()
