"""Names, ttls and waits: what is accepted, and that refusals name the value, the reason and the way out."""

import math

import pytest
from django.contrib.auth.models import Group
from hypothesis import given
from hypothesis import strategies as st

from locking import LockKeyError
from locking.keys.names import MAX_NAME, MAX_TTL, UNSET, check_name, check_names, check_ttl, check_wait

valid_text = st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), min_size=1).filter(
    str.strip
)


@given(valid_text)
def test_any_text_is_a_name(text):
    """Whatever isn't blank and has no braces is used as it is."""
    assert check_name(text) == text


@given(st.text("ab{}", min_size=1, max_size=12))
def test_braces_must_pair_up(text):
    """A name with braces is accepted exactly when they nest and none encloses nothing."""
    depth, fine = 0, "{}" not in text
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        fine = fine and depth >= 0
    if fine and depth == 0:
        assert check_name(text) == text
    else:
        with pytest.raises(LockKeyError, match="braces"):
            check_name(text)


@given(st.lists(valid_text, min_size=1))
def test_several_names_are_sorted_without_duplicates(names):
    """Any two callers take the same names in the same order."""
    checked = check_names(tuple(names))
    assert list(checked) == sorted(set(names))
    assert checked == check_names(tuple(reversed(names)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (42, r"must be a str, not 42 \(int\); pass str"),
        (None, r"not None \(NoneType\)"),
        (Group(pk=7, name="staff"), r"not <Group: staff> \(Group\); pass f'group:\{group.pk\}'"),
        (b"a", r"not b'a' \(bytes\)"),
        ("", r"can't be empty \(''\)"),
        ("x" * (MAX_NAME + 1), rf"at most {MAX_NAME} characters, 'xxx.* has {MAX_NAME + 1}; hash it"),
        ("a{", r"braces in the lock's name 'a\{' don't pair up"),
        ("a{}", r"braces"),
        ("\udfff", r"not valid Unicode"),
    ],
)
def test_refused_names_say_why(value, message):
    """The message shows the value and what to do."""
    with pytest.raises(LockKeyError, match=message):
        check_name(value)


def test_no_names_at_all_are_refused():
    """A lock of nothing would exclude no caller."""
    with pytest.raises(LockKeyError, match="at least one name, for example"):
        check_names(())


@given(st.floats(0.001, MAX_TTL) | st.integers(1, int(MAX_TTL)))
def test_ttls_are_seconds(ttl):
    """Fractions too; the answer is a float."""
    assert check_ttl(ttl) == ttl
    assert isinstance(check_ttl(ttl), float)


@given(
    st.floats().filter(lambda it: not 0.001 <= it <= MAX_TTL)
    | st.booleans()
    | st.none()
    | st.text()
    | st.integers(max_value=0)
)
def test_anything_else_is_no_ttl(value):
    """The message begins with what the caller named it."""
    with pytest.raises(ValueError, match=r"^TTL must be"):
        check_ttl(value, source="TTL")


@given(st.floats(min_value=0, allow_infinity=False) | st.integers(0, 10**9))
def test_waits_are_seconds(wait):
    """Zero is allowed: don't wait."""
    assert check_wait(wait) == wait


@pytest.mark.parametrize("value", [-1, -0.1, math.inf, math.nan, "5", True, [1]])
def test_anything_else_is_no_wait(value):
    """The message tells what 0 and None mean, or what is wrong with the value."""
    with pytest.raises(ValueError, match=r"^wait must be"):
        check_wait(value)


def test_no_limit_and_not_given_are_two_things():
    """None waits without end; UNSET takes the default."""
    assert check_wait(None) is None
    assert repr(UNSET) == "UNSET"
