import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.domain import MAX_LINES, MAX_QUANTITY, Line
from orders.http.reading import (
    MAX_FAULTS,
    CheckoutRequest,
    Fault,
    InvalidRequest,
    parse_after,
    parse_checkout,
    unknown_products,
)

GOOD = {"sku": "mug", "quantity": 1}

SKUS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")
LINES = st.lists(st.builds(Line, SKUS, st.integers(1, MAX_QUANTITY)), min_size=1, max_size=10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["lines", "sku"]), inner),
)


def faults_of(body: Any, strategies: tuple[str, ...] = ("row_lock",)) -> dict[str, str]:
    """Return the faults found in a body (bytes, or anything to be sent as JSON), by pointer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(InvalidRequest) as refused:
        parse_checkout(raw, strategies=lambda: strategies)
    return {fault.pointer: fault.detail for fault in refused.value.faults}


def faults_or_none(value: Any) -> tuple[Fault, ...]:
    """Return the faults found in any JSON value, or nothing if it is understood."""
    try:
        parse_checkout(json.dumps(value).encode(), strategies=lambda: ["row_lock"])
    except InvalidRequest as refused:
        return refused.faults
    return ()


def test_reads_lines_as_they_came():
    """Lines keep their order and their duplicates: merging them is the checkout's work."""
    lines = [{"sku": "pen", "quantity": 2}, GOOD, {"sku": "pen", "quantity": 1}]
    wanted = parse_checkout(json.dumps({"lines": lines}).encode(), strategies=list)
    assert wanted == CheckoutRequest((Line("pen", 2), Line("mug", 1), Line("pen", 1)), None)


def test_reads_a_strategy_that_may_be_chosen():
    """A strategy among those offered is passed on."""
    body = json.dumps({"lines": [GOOD], "strategy": "row_lock"}).encode()
    assert parse_checkout(body, strategies=lambda: ["row_lock"]).strategy == "row_lock"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\xff{}", "not UTF-8 (byte 0)"),
        (b"{", "not JSON"),
        (b'{"lines": [1,]}', "not JSON"),
        (b'{"lines": NaN}', "NaN is not a JSON number"),
        (b'{"lines": Infinity}', "Infinity is not a JSON number"),
        (b'{"lines": [], "lines": []}', 'key "lines" twice'),
        (b'{"lines": [{"sku": "a", "quantity": 1, "quantity": 9}]}', 'key "quantity" twice'),
        (b"[" * 60_000, "nested too deeply"),
        (b'{"lines": [{"sku": "a", "quantity": ' + b"9" * 5000 + b"}]}", "too many digits"),
        ([GOOD], "not an array"),
        ("lines", 'not "lines"'),
        (None, "not null"),
        (True, "not true"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body, reason):
    """A body that can't be an order at all is refused as a whole, with the reason."""
    assert reason in faults_of(body)[""]


@pytest.mark.parametrize(
    ("body", "pointer", "reason"),
    [
        ({}, "/lines", "is missing"),
        ({"lines": None}, "/lines", "must be an array of lines, not null"),
        ({"lines": {}}, "/lines", "not an object"),
        ({"lines": "mug"}, "/lines", 'not "mug"'),
        ({"lines": []}, "/lines", "has 0 lines"),
        ({"lines": [GOOD] * (MAX_LINES + 1)}, "/lines", f"has {MAX_LINES + 1} lines"),
        ({"lines": [GOOD], "customer": "a\0b"}, "/customer", "can be printed"),
        ({"lines": [GOOD], "customer": "half a pair: \ud800"}, "/customer", "can be printed"),
        ({"lines": [GOOD], "extra": 1}, "/extra", "not a known field"),
        ({"lines": [GOOD], "a/b~c": 1}, "/a~1b~0c", "not a known field"),
        ({"lines": [GOOD], "\ud800": 1}, "", "not Unicode"),
        ({"lines": [{**GOOD, "\ud800": 1}]}, "/lines/0", "not Unicode"),
        ({"lines": ["mug"]}, "/lines/0", 'not "mug"'),
        ({"lines": [GOOD, None]}, "/lines/1", "not null"),
        ({"lines": [{"quantity": 1}]}, "/lines/0/sku", "is missing"),
        ({"lines": [{"sku": "mug"}]}, "/lines/0/quantity", "is missing"),
        ({"lines": [{**GOOD, "price": 0}]}, "/lines/0/price", "not a known field"),
        ({"lines": [{**GOOD, "sku": ""}]}, "/lines/0/sku", '"": must be'),
        ({"lines": [{**GOOD, "sku": 7}]}, "/lines/0/sku", "7: must be"),
        ({"lines": [{**GOOD, "sku": ["a"]}]}, "/lines/0/sku", "an array: must be"),
        ({"lines": [{**GOOD, "sku": "a\x00b"}]}, "/lines/0/sku", "must be"),
        ({"lines": [{**GOOD, "sku": "\ud800"}]}, "/lines/0/sku", "must be"),
        ({"lines": [{**GOOD, "sku": "x" * 65}]}, "/lines/0/sku", "1 to 64"),
        ({"lines": [{**GOOD, "quantity": 0}]}, "/lines/0/quantity", "0: must be between 1"),
        ({"lines": [{**GOOD, "quantity": -1}]}, "/lines/0/quantity", "-1: must be between 1"),
        ({"lines": [{**GOOD, "quantity": MAX_QUANTITY + 1}]}, "/lines/0/quantity", f"and {MAX_QUANTITY}"),
        ({"lines": [{**GOOD, "quantity": 10**400}]}, "/lines/0/quantity", "...: must be between"),
        ({"lines": [{**GOOD, "quantity": True}]}, "/lines/0/quantity", "true: must be a whole number"),
        ({"lines": [{**GOOD, "quantity": 1.0}]}, "/lines/0/quantity", "1.0: must be a whole number"),
        ({"lines": [{**GOOD, "quantity": "1"}]}, "/lines/0/quantity", '"1": must be a whole number'),
        ({"lines": [{**GOOD, "quantity": None}]}, "/lines/0/quantity", "null: must be a whole number"),
        ({"lines": [GOOD], "strategy": "magic"}, "/strategy", '"magic" is not one of row_lock'),
        ({"lines": [GOOD], "strategy": 3}, "/strategy", "must be a string, not 3"),
        ({"lines": [GOOD], "strategy": None}, "/strategy", "must be a string, not null"),
    ],
)
def test_a_wrong_field_is_named_with_the_reason(body, pointer, reason):
    """One wrong field gives one fault, whose pointer leads to it and whose detail shows value and reason."""
    faults = faults_of(body)
    assert list(faults) == [pointer]
    assert reason in faults[pointer]


def test_a_strategy_is_refused_where_none_may_be_chosen():
    """Without a choice of strategies, naming even an existing one is refused."""
    faults = faults_of({"lines": [GOOD], "strategy": "row_lock"}, strategies=())
    assert "only with DEBUG on" in faults["/strategy"]


def test_all_faults_are_told_at_once():
    """A client hears of every wrong field in one answer, of both fields of one line too."""
    faults = faults_of({"lines": [{"sku": "!", "quantity": 0}, 5], "strategy": "magic", "x": 1})
    assert list(faults) == ["/x", "/lines/0/sku", "/lines/0/quantity", "/lines/1", "/strategy"]


def test_the_number_of_faults_is_bounded():
    """A small request full of faults doesn't get a large answer."""
    assert len(faults_of({"lines": [GOOD], **{f"x{n}": n for n in range(500)}})) == MAX_FAULTS


@given(LINES)
def test_every_possible_order_is_understood(lines):
    """Whatever lines the domain allows come through unchanged."""
    body = json.dumps({"lines": [{"sku": line.sku, "quantity": line.quantity} for line in lines]}).encode()
    assert parse_checkout(body, strategies=list).lines == tuple(lines)


@given(JSON | st.builds(lambda lines: {"lines": lines}, JSON))
def test_no_json_surprises_the_parser(value):
    """Any JSON is either understood or refused with a printable reason; nothing else is ever raised."""
    for fault in faults_or_none(value):
        assert f"{fault.pointer}{fault.detail}".isprintable()


@given(st.binary())
def test_no_bytes_surprise_the_parser(body):
    """Bytes that are no order are refused, and nothing but InvalidRequest is raised."""
    with pytest.raises(InvalidRequest):
        parse_checkout(body, strategies=list)


def test_unknown_products_are_pointed_at():
    """Each line of an unknown product is named, duplicates too."""
    refused = unknown_products([Line("a", 1), Line("b", 1), Line("a", 2)], ["a"])
    assert [fault.pointer for fault in refused.faults] == ["/lines/0/sku", "/lines/2/sku"]


@pytest.mark.parametrize("after", ["", "mug-01", "A.b_c"])
def test_a_page_may_begin_after_a_sku(after):
    """The empty string and every SKU are accepted as the beginning of a page."""
    assert parse_after(after) == after


@pytest.mark.parametrize("after", ["\x00", "a b", "'; --", "mug\n", "x" * 65])
def test_a_page_can_not_begin_after_nonsense(after):
    """What can't be a SKU is refused before the database is asked."""
    with pytest.raises(InvalidRequest, match="follow `next`"):
        parse_after(after)
