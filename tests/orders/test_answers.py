"""Answers in JSON, and the addresses that they name."""

from uuid import UUID

import pytest
from django.test import override_settings
from django.urls import reverse, set_script_prefix

from orders.http.responses import address_of, json_answer

NUMBER = UUID(int=7)


def test_an_answer_is_json_in_utf_8():
    """An answer with any status and headers is read as what it was."""
    problem = "application/problem+json"
    answer = json_answer({"sku": "茶", "id": NUMBER}, status=409, media=problem, headers={"X": "1"})
    assert (answer.status_code, answer["Content-Type"], answer["X"]) == (409, problem, "1")
    assert answer.content == b'{"sku": "\\u8336", "id": "00000000-0000-0000-0000-000000000007"}'


@pytest.mark.parametrize("what", ["order", "reservation"])
def test_an_address_is_what_reverse_says(what):
    """The pattern that is kept gives the same address as asking for each."""
    assert address_of(what, NUMBER) == reverse(f"orders:{what}", args=[NUMBER])


def test_an_address_follows_the_script_prefix():
    """A shop that is mounted below a path names its orders there."""
    address_of("order", NUMBER)
    set_script_prefix("/shop/")
    try:
        assert address_of("order", NUMBER) == f"/shop/orders/{NUMBER}/"
    finally:
        set_script_prefix("/")


def test_an_address_follows_the_urlconf():
    """So does one whose addresses are others than before."""
    address_of("order", NUMBER)
    with override_settings(ROOT_URLCONF="tests.orders.other_urls"):
        assert address_of("order", NUMBER) == f"/elsewhere/orders/{NUMBER}/"
