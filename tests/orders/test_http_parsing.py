import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory import Line
from orders.http.problems import Problem
from orders.http.reading import MAX_FAULTS, read_cart
from orders.selling.cart import MAX_LINES, MAX_QUANTITY
from orders.selling.strategies import StrategyChoice

GOOD = {"sku": "mug", "quantity": 1}

SKUS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")
LINES = st.lists(st.builds(Line, SKUS, st.integers(1, MAX_QUANTITY)), min_size=1, max_size=10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["lines", "sku"]), inner),
)


@pytest.fixture(autouse=True)
def choosable(monkeypatch):
    """A shop whose clients may choose this strategy."""
    choice = StrategyChoice("conditional_update", "")
    monkeypatch.setattr("orders.http.bodies.choices", lambda: [choice])


def faults_of(body: Any) -> dict[str, str]:
    """Return the faults found in a body (bytes, or anything to be sent as JSON), by pointer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Problem) as refused:
        read_cart(raw)
    return {fault["pointer"]: fault["detail"] for fault in refused.value.members["errors"]}


def test_reads_lines_as_they_came():
    """Lines keep their order and their duplicates: merging them is the checkout's work."""
    lines = [{"sku": "pen", "quantity": 2}, GOOD, {"sku": "pen", "quantity": 1}]
    wanted: Any = read_cart(json.dumps({"lines": lines}).encode())
    assert wanted.cart() == (Line("pen", 2), Line("mug", 1), Line("pen", 1))


def test_reads_a_strategy_that_may_be_chosen():
    """A strategy among those offered is passed on."""
    wanted: Any = read_cart(json.dumps({"lines": [GOOD], "strategy": "conditional_update"}).encode())
    assert wanted.strategy == "conditional_update"


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
        ({"lines": None}, "/lines", "null: must be an array of 1 to 100 lines"),
        ({"lines": {}}, "/lines", "an object: must be an array"),
        ({"lines": "mug"}, "/lines", '"mug": must be an array'),
        ({"lines": []}, "/lines", "an array of 1 to 100 lines"),
        ({"lines": [GOOD] * (MAX_LINES + 1)}, "/lines", f"an array of 1 to {MAX_LINES} lines"),
        ({"lines": [GOOD], "customer": "a\0b"}, "/customer", "can be printed"),
        ({"lines": [GOOD], "customer": "half a pair: \ud800"}, "/customer", "can be printed"),
        ({"lines": [GOOD], "extra": 1}, "/extra", "not a known field"),
        ({"lines": [GOOD], "a/b~c": 1}, "/a~1b~0c", "not a known field"),
        ({"lines": [GOOD], "\ud800": 1}, "", "must be a valid string"),
        ({"lines": [{**GOOD, "\ud800": 1}]}, "/lines/0", "must be a valid string"),
        ({"lines": ["mug"]}, "/lines/0", '"mug": must be an object'),
        ({"lines": [GOOD, None]}, "/lines/1", "null: must be an object"),
        ({"lines": [{"quantity": 1}]}, "/lines/0/sku", "is missing"),
        ({"lines": [{"sku": "mug"}]}, "/lines/0/quantity", "is missing"),
        ({"lines": [{**GOOD, "price": 0}]}, "/lines/0/price", "not a known field"),
        ({"lines": [{**GOOD, "sku": ""}]}, "/lines/0/sku", '"": must be'),
        ({"lines": [{**GOOD, "sku": 7}]}, "/lines/0/sku", "7: must be"),
        ({"lines": [{**GOOD, "sku": ["a"]}]}, "/lines/0/sku", "an array: must be"),
        ({"lines": [{**GOOD, "sku": "a\x00b"}]}, "/lines/0/sku", "must be"),
        ({"lines": [{**GOOD, "sku": "\ud800"}]}, "/lines/0/sku", "must be"),
        ({"lines": [{**GOOD, "sku": "x" * 65}]}, "/lines/0/sku", "1 to 64"),
        ({"lines": [{**GOOD, "quantity": 0}]}, "/lines/0/quantity", "0: must be a whole number between 1"),
        ({"lines": [{**GOOD, "quantity": -1}]}, "/lines/0/quantity", "-1: must be a whole number between 1"),
        ({"lines": [{**GOOD, "quantity": MAX_QUANTITY + 1}]}, "/lines/0/quantity", f"and {MAX_QUANTITY}"),
        (
            {"lines": [{**GOOD, "quantity": 10**400}]},
            "/lines/0/quantity",
            "...: must be a whole number between",
        ),
        ({"lines": [{**GOOD, "quantity": True}]}, "/lines/0/quantity", "true: must be a whole number"),
        ({"lines": [{**GOOD, "quantity": 1.0}]}, "/lines/0/quantity", "1.0: must be a whole number"),
        ({"lines": [{**GOOD, "quantity": "1"}]}, "/lines/0/quantity", '"1": must be a whole number'),
        ({"lines": [{**GOOD, "quantity": None}]}, "/lines/0/quantity", "null: must be a whole number"),
        ({"lines": [GOOD], "strategy": "magic"}, "/strategy", '"magic": must be one of conditional_update'),
        ({"lines": [GOOD], "strategy": 3}, "/strategy", "3: must be one of conditional_update"),
        ({"lines": [GOOD], "strategy": None}, "/strategy", "null: must be one of conditional_update"),
    ],
)
def test_a_wrong_field_is_named_with_the_reason(body, pointer, reason):
    """One wrong field gives one fault, whose pointer leads to it and whose detail shows value and reason."""
    faults = faults_of(body)
    assert list(faults) == [pointer]
    assert reason in faults[pointer]


def test_a_strategy_is_refused_where_none_may_be_chosen(monkeypatch):
    """Without a choice of strategies, naming even an existing one is refused."""
    monkeypatch.setattr("orders.http.bodies.choices", list)
    assert "only with DEBUG on" in faults_of({"lines": [GOOD], "strategy": "conditional_update"})["/strategy"]


def test_all_faults_are_reported_at_once():
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
    wanted: Any = read_cart(body)
    assert wanted.cart() == tuple(lines)


@given(JSON | st.builds(lambda lines: {"lines": lines}, JSON))
def test_no_json_surprises_the_parser(value):
    """Any JSON is either understood or refused with a printable reason; nothing else is ever raised."""
    try:
        read_cart(json.dumps(value).encode())
    except Problem as refused:
        for fault in refused.members["errors"]:
            assert f"{fault['pointer']}{fault['detail']}".isprintable()


@given(st.binary())
def test_no_bytes_surprise_the_parser(body):
    """Bytes that are no order are refused, and nothing but a problem is raised."""
    with pytest.raises(Problem):
        read_cart(body)
