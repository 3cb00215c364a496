"""The key grammar: what it accepts, how it refuses, and that unrelated callers stay apart."""

from __future__ import annotations

import enum
import string
import textwrap
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory
from django.utils.functional import SimpleLazyObject
from hypothesis import given
from hypothesis import strategies as st

from locking.exceptions import LockKeyError
from locking.keys.names import MAX_NAME, balanced
from locking.keys.template import MAX_LENGTH, as_text, compile_template, encode, key_builder


def render(source: str, **arguments: object) -> str:
    """The name that a template gives for these arguments."""
    return compile_template(source).render(arguments)


def saved(model: type[Any], **fields: object) -> Any:
    """A model instance that looks as if it came from the database, without one."""
    instance = model(**fields)
    instance._state.adding = False
    return instance


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


UUID_TEXT = "6f1c0f6e-0d0a-4f6e-9d5b-0a4d1c3a2b1f"


# --- what the grammar accepts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "arguments", "name"),
    [
        ("'order:'+<id>", {"id": 42}, "order:42"),
        ('"order:"+<id>', {"id": 42}, "order:42"),
        ("  'order:' + < id >  ", {"id": 42}, "order:42"),
        ("'a'+'b'", {}, "ab"),
        ("<id>", {"id": "x"}, "x"),
        ('"it\'s:"+<id>', {"id": 1}, "it's:1"),
        ("'a:'+<x>+':'+<y>", {"x": "1:2", "y": "3"}, "a:1%3A2:3"),
        ("'n:'+<int:id>", {"id": "007"}, "n:7"),
        ("'n:'+<int:id>", {"id": 7}, "n:7"),
        ("'n:'+<int:id>", {"id": "-0"}, "n:0"),
        ("'n:'+<uuid:id>", {"id": UUID_TEXT.upper()}, f"n:{UUID_TEXT}"),
        ("'n:'+<uuid:id>", {"id": uuid.UUID(UUID_TEXT)}, f"n:{UUID_TEXT}"),
        ("'n:'+<slug:s>", {"s": "a-b_c"}, "n:a-b_c"),
        ("'n:'+<str:s>", {"s": "库存"}, "n:库存"),
        ("'n:'+<a.b.c>", {"a": SimpleNamespace(b=SimpleNamespace(c=5))}, "n:5"),
        ("'n:'+<a|'none'>", {"a": None}, "n:none"),
        ("'n:'+<a|'none'>", {"a": ""}, "n:none"),
        ("'n:'+<a|'none'>", {}, "n:none"),
        ("'n:'+<a.b|\"it's > none\">", {"a": None}, "n:it's%20>%20none"),
        ("'n:'+<a.b|'none'>", {"a": SimpleNamespace()}, "n:none"),
        ("'{shop}:'+<id>", {"id": 1}, "{shop}:1"),
        ("'{'+<id>+'}:lock'", {"id": 1}, "{1}:lock"),
        ("'100%:'+<id>", {"id": 1}, "100%25:1"),
        ("<a>+'-'+<b>", {"a": "1-2", "b": "3"}, "1%2D2-3"),
    ],
)
def test_a_template_builds_the_name(source: str, arguments: dict[str, object], name: str) -> None:
    """Every form of the grammar gives exactly the name that the reference promises."""
    assert render(source, **arguments) == name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (7, "7"),
        (uuid.UUID(UUID_TEXT), UUID_TEXT),
        (Color.RED, "red"),
        (Level.HIGH, "3"),
        (date(2026, 11, 21), "2026-11-21"),
        (datetime(2026, 11, 21, 9, 30, tzinfo=UTC), "2026-11-21T09%3A30%3A00+00%3A00"),
        (saved(User, pk=5), "5"),
        (SimpleLazyObject(lambda: saved(User, pk=5)), "5"),
    ],
)
def test_a_value_is_written_by_its_kind(value: object, text: str) -> None:
    """Each kind of value that may name a lock has one spelling."""
    assert render("<v>", v=value) == text


def test_one_moment_is_one_key() -> None:
    """The same moment in two time zones locks the same thing."""
    moment = datetime(2026, 11, 21, 9, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=8)))
    assert render("<t>", t=moment) == render("<t>", t=elsewhere)


def test_a_template_is_read_once() -> None:
    """The same source is the same compiled template: a decorator in a loop costs no parsing."""
    assert compile_template("'once:'+<id>") is compile_template("'once:'+<id>")


# --- what it refuses, and how it says so ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "column", "advice"),
    [
        ("", 1, "a term is expected here"),
        ("''", 1, "the key is empty"),
        ("'a'+", 5, "a term is expected here"),
        ("order:+<id>", 1, 'write "order:{id}"'),
        ("order:<id>", 1, 'write "order:{id}"'),
        ("a-<id>-b:<name>", 1, 'write "a-{id}-b:{name}"'),
        ("'a'+order", 5, "'text' or <parameter>"),
        ("'order:'+#id", 10, 'write "order:{id}"'),
        ("'order:'+#order.pk", 10, 'write "order:{order.pk}"'),
        ("f'order:{id}'", 1, 'write "order:{id}"'),
        ("order:${id}", 1, 'write "order:{id}"'),
        ("order:%(id)s", 1, 'write "order:{id}"'),
        ("'order:'+{id}", 10, 'write "order:{id}"'),
        ("'order:'+${id}", 10, 'write "order:{id}"'),
        ("'order:'+$id", 10, 'write "order:{id}"'),
        ("'order:'+%s", 10, "a term is expected here"),
        ("'order:'<id>", 9, """a '+' is missing before this; write "order:{id}\""""),
        ("'a' 'b'", 5, "a '+' is missing"),
        ("'order:", 1, "a term is expected here"),
        ("'order:'+<id", 10, "this '<' is never closed"),
        ("'order:'+id>", 10, "a term is expected here"),
        ("'a'>", 4, "a '+' is missing"),
        ("('a')", 1, "a term is expected here"),
        ("<get()>", 2, "what calls or indexes belongs in a callable key"),
        ("<items[0]>", 2, "what calls or indexes belongs in a callable key"),
        ("<#id>", 2, 'write "{id}"'),
        ("<>", 2, "a value is a parameter"),
        ("<a.>", 2, "a value is a parameter"),
        ("<a b>", 2, "a value is a parameter"),
        ("<a|''>", 2, "an empty default"),
        ("<_a>", 2, "is private, and not read"),
        ("<a.__class__>", 2, "is private, and not read"),
        ("<integer:a>", 2, "did you mean int?"),
        ("<a>+<b>", 6, "two values are adjacent"),
        ("<a>+''+<b>", 9, "can't keep the values before and after it apart"),
        ("<a>+'0'+<b>", 10, "can't keep the values before and after it apart"),
        ("'a{'+<b>", 3, "braces of a key must be balanced"),
        ("'}a{'+<b>", 2, "braces of a key must be balanced"),
        ("'{}'+<b>", 2, "braces of a key must be balanced and hold something"),
        ("'a'+\x00", 5, "a term is expected here"),
    ],
)
def test_a_broken_template_is_explained(source: str, column: int, advice: str) -> None:
    """Every mistake is refused with its column, a caret under it, and what to write instead."""
    with pytest.raises(LockKeyError) as caught:
        compile_template(source)
    first, shown, caret = str(caught.value).split("\n")
    assert f"column {column}:" in first
    assert advice in first
    assert caret.index("^") == len("    ") + column - 1
    assert len(shown) == len("    ") + len(source)


def test_a_template_is_a_str() -> None:
    """Something else than a text is refused by name, also what can't be hashed."""
    with pytest.raises(LockKeyError, match=r"a str, not \['a'\]"):
        compile_template(["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "is None"),
        ("", "empty"),
        (SimpleLazyObject(lambda: None), "is None"),
        (True, "is a bool"),
        (1.5, "is a float"),
        ([1], "several values"),
        ((1,), "several values"),
        ({1: 2}, "several values"),
        (b"x", "bytes values can't name a lock"),
        (len, "keys call nothing"),
        (User(), "an unsaved User has no identity"),
        (User(pk=5), "an unsaved User has no identity"),
        (AnonymousUser(), "can't name a lock"),
        (SimpleLazyObject(lambda: "text"), "can't name a lock"),
        pytest.param(10**5000, "thousands of digits", id="huge"),
        (enum.Enum("E", {"EMPTY": ""}).EMPTY, "empty"),  # type: ignore[attr-defined]
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "outside the calendar"),
    ],
)
def test_a_value_that_cannot_name_a_lock_is_refused(value: object, reason: str) -> None:
    """A value that says nothing, or could mean two things, is refused with the reason."""
    with pytest.raises(LockKeyError, match=reason):
        render("'a:'+<v>", v=value)


@pytest.mark.parametrize(
    ("converter", "value", "reason"),
    [
        ("int", "1.0", "not a whole number"),
        ("int", "seven", "not a whole number"),
        ("int", "٧", "not a whole number"),
        ("uuid", "123", "not a UUID"),
        ("slug", "a b", "not a slug"),
        ("slug", "a\n", "not a slug"),
    ],
)
def test_a_converter_refuses_what_it_cannot_read(converter: str, value: str, reason: str) -> None:
    """A converter names the value and says what it should have been."""
    with pytest.raises(LockKeyError, match=reason):
        render(f"<{converter}:v>", v=value)


def test_a_missing_attribute_is_reported_with_a_suggestion() -> None:
    """A misspelt attribute is answered with the nearest one that exists."""
    with pytest.raises(LockKeyError, match=r'did you mean "<user\.username>"'):
        render("<user.usernam>", user=saved(User, pk=1))


def test_none_within_a_chain_is_none() -> None:
    """An attribute of None is missing, not an AttributeError."""
    with pytest.raises(LockKeyError, match="is None"):
        render("<order.customer.pk>", order=SimpleNamespace(customer=None))


def test_attributes_are_read_and_never_called() -> None:
    """A method named in a template is refused, and has not run."""
    calls = []
    with pytest.raises(LockKeyError, match="keys call nothing"):
        render("<o.method>", o=SimpleNamespace(method=lambda: calls.append(1)))
    assert calls == []


# --- checked against the signature, at decoration ---------------------------------------------------------


def pay(order_id: int, note: str = "plain", *extra: object) -> None:
    """What the tests decorate."""


def test_an_unknown_parameter_is_refused_at_decoration() -> None:
    """A misspelt parameter is pointed at, with the nearest one that exists."""
    with pytest.raises(LockKeyError) as caught:
        key_builder(pay, "'order:'+<ordr_id>")
    assert str(caught.value) == textwrap.dedent(
        """\
        key template, column 11: 'ordr_id' is not a parameter of pay (it has order_id, note, extra); \
did you mean "'order:'+<order_id>"?
            'order:'+<ordr_id>
                      ^"""
    )


def test_many_arguments_are_no_value() -> None:
    """`*args` and `**kwargs` themselves can't be a piece of a key."""
    with pytest.raises(LockKeyError, match="several arguments"):
        key_builder(pay, "<extra>")


def test_a_text_that_was_meant_to_be_formatted_is_refused() -> None:
    """`'order:{order_id}'` would be one lock for all callers, so it is refused at decoration."""
    with pytest.raises(LockKeyError, match=r"isn't formatted; write \"order:{order_id}\""):
        key_builder(pay, "'order:{order_id}'")


def test_keyword_arguments_may_hold_any_name() -> None:
    """With `**kwargs` a name is looked up at the call, and an error when it is missing."""

    def view(request: object, **kwargs: object) -> None: ...

    build = key_builder(view, "'order:'+<pk>")
    assert build((object(),), {"pk": 3}) == ("order:3",)
    with pytest.raises(LockKeyError, match="the call has no argument pk; it has request, pkk; did you mean"):
        build((object(),), {"pkk": 1})


def test_defaults_and_keywords_are_arguments_too() -> None:
    """A parameter is found wherever the caller put it, and by its default."""
    build = key_builder(pay, "<order_id>+':'+<note>")
    assert build((1,), {}) == build((), {"order_id": 1}) == build((1, "plain"), {}) == ("1:plain",)


def test_a_wrong_call_is_a_type_error() -> None:
    """A call that the function itself would refuse is refused in the same way."""
    with pytest.raises(TypeError, match="missing a required argument"):
        key_builder(pay, "<order_id>")((), {})


def test_several_templates_give_several_names() -> None:
    """A list gives one name for each template."""
    assert key_builder(pay, ["'a:'+<order_id>", "'b:'+<note>"])((1,), {}) == ("a:1", "b:plain")


@pytest.mark.parametrize("key", [[], {"a"}, 5])
def test_a_key_is_a_template_or_a_list_of_them(key: Any) -> None:
    """An empty list, a set or a number is none."""
    with pytest.raises(LockKeyError, match="is no key: write"):
        key_builder(pay, key)


def test_a_bound_partial_is_read_without_self() -> None:
    """What `method_decorator` hands over is checked against the bound signature."""

    class View:
        def post(self, request: object, pk: int) -> None: ...

    bound = wraps(View.post)(partial(View.post.__get__(View(), View)))
    assert key_builder(bound, "'order:'+<pk>")((object(), 4), {}) == ("order:4",)


# --- callable keys ----------------------------------------------------------------------------------------


def test_a_callable_key_gets_the_arguments() -> None:
    """A callable key is called like the function, and its text is used as it is."""
    assert key_builder(pay, lambda order_id, **_: f"order:{order_id}")((1,), {"note": "x"}) == ("order:1",)


def test_a_callable_keys_long_name_is_that_of_get_lock() -> None:
    """The same text locks the same thing, by whichever way; beyond what `get_lock` takes it is hashed."""
    for name in ("x" * (MAX_LENGTH + 1), "x" * MAX_NAME):
        assert key_builder(pay, lambda order_id, name=name: name)((1,), {}) == (name,)
    (hashed,) = key_builder(pay, lambda order_id: "x" * (MAX_NAME + 1))((1,), {})
    assert len(hashed) == MAX_LENGTH


def test_a_callable_key_may_return_several_names() -> None:
    """A list of names is a lock on all of them."""
    assert key_builder(pay, lambda order_id: ["a", "b"])((1,), {}) == ("a", "b")


@pytest.mark.parametrize("result", [None, "", 5, [], ["a", None], "a{b"])
def test_a_callable_key_returns_a_name(result: Any) -> None:
    """Anything but a name, or names, is refused and named."""
    with pytest.raises(LockKeyError, match="the callable key"):
        key_builder(pay, lambda order_id: result)((1,), {})


def test_an_async_callable_key_is_refused() -> None:
    """A coroutine is no name, and is closed rather than left unawaited."""

    async def key(order_id: int) -> str:
        return "a"

    with pytest.raises(LockKeyError, match="coroutine"):
        key_builder(pay, key)((1,), {})  # type: ignore[arg-type]


# --- the key when none is given ---------------------------------------------------------------------------


def test_an_omitted_key_is_the_path_and_the_arguments() -> None:
    """Without a key, the dotted path and `name=value` of each argument name the lock."""
    path = f"{__name__}.pay"
    assert key_builder(pay)((1,), {}) == (f"{path}:order_id=1:note=plain",)
    assert key_builder(pay)((1, "a:b", 9), {}) == (f"{path}:order_id=1:note=a%3Ab:0=9",)


def test_an_omitted_key_leaves_out_request_and_self() -> None:
    """The request, and the object that a method belongs to, say nothing about what is locked."""

    class View:
        def post(self, request: object, pk: int, **kwargs: object) -> None: ...

    request = RequestFactory().get("/")
    (name,) = key_builder(View.post)((View(), request), {"pk": 1, "b=": 2, "a": 3})
    assert name == f"{View.post.__module__}.{View.post.__qualname__}:pk=1:a=3:b%3D=2"


@pytest.mark.parametrize("value", [None, "", 1.5, [1], True])
def test_an_omitted_key_refuses_the_same_values(value: object) -> None:
    """A default key is as strict as a template, names the argument and the way out."""
    with pytest.raises(LockKeyError, match=r"argument 'order_id' of .*key=…"):
        key_builder(pay)((value,), {})


# --- length -----------------------------------------------------------------------------------------------


def test_a_long_name_keeps_its_head_and_a_hash() -> None:
    """Over 200 characters the tail becomes a hash of the whole; exactly 200 stay as they are."""
    assert render("<v>", v="x" * MAX_LENGTH) == "x" * MAX_LENGTH
    long = render("<v>", v="x" * (MAX_LENGTH + 1))
    assert len(long) == MAX_LENGTH
    assert long.startswith("x" * 160)
    assert long != render("<v>", v="x" * (MAX_LENGTH + 2))


def test_no_short_name_equals_a_hashed_one() -> None:
    """A caller who knows the hash can't write a value that gives the same name."""
    hashed = render("<v>", v="x" * 300)
    assert render("<v>", v=hashed) != hashed


def test_a_hashed_name_keeps_its_braces_balanced() -> None:
    """The cut never leaves an opening brace without its partner."""
    name = render("'{'+<v>+'}'", v="x" * 300)
    assert balanced(name)


# --- properties -------------------------------------------------------------------------------------------

values = st.text(min_size=1, max_size=12) | st.integers() | st.uuids() | st.dates()
separators = st.text(min_size=1, max_size=3).filter(lambda t: "'" not in t and '"' not in t)


def spelling(value: object) -> str:
    """Two values with one spelling are one thing: 7 from a form is 7 from a column."""
    return as_text(value)


@st.composite
def colliding(draw: st.DrawFn) -> tuple[str, list[object], list[object]]:
    """A template over two or three values, and two tuples from one small alphabet: near misses are likely."""
    count = draw(st.integers(2, 3))
    texts = [
        draw(st.sampled_from([":", "-", "/", "::", " ", "_x", "0-", "%:", "{a}", "号"]))
        for _ in range(count - 1)
    ]
    alphabet = "".join(set("".join(texts))) + "1%A3:-~"
    piece = st.text(alphabet, min_size=1, max_size=5)
    source = "<v0>" + "".join(f"+'{text}'+<v{i + 1}>" for i, text in enumerate(texts))
    return source, [draw(piece) for _ in range(count)], [draw(piece) for _ in range(count)]


@given(colliding())
def test_different_values_never_share_a_key(case: tuple[str, list[object], list[object]]) -> None:
    """For one template, two tuples of values give one name only when they are the same tuple."""
    source, left, right = case
    names = [render(source, **{f"v{i}": v for i, v in enumerate(side)}) for side in (left, right)]
    assert (names[0] == names[1]) == (left == right)


def test_mutant_values_that_keep_their_separators_share_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unencoded, `1:2` and `3` are `1` and `2:3`: one lock for two strangers."""
    sides: list[dict[str, object]] = [{"v0": "1:2", "v1": "3"}, {"v0": "1", "v1": "2:3"}]
    assert len({render("<v0>+':'+<v1>", **side) for side in sides}) == 2
    monkeypatch.setattr("locking.keys.template._percent", lambda match: match[0])
    assert len({render("<v0>+':'+<v1>", **side) for side in sides}) == 1


@given(st.lists(values, min_size=2, max_size=2), st.lists(values, min_size=2, max_size=2), separators)
def test_values_of_any_kind_stay_apart(left: list[object], right: list[object], separator: str) -> None:
    """Whatever the separating text, it either keeps the values apart or is refused."""
    try:
        template = compile_template(f"<a>+'{separator}'+<b>")
    except LockKeyError:
        return
    names = [template.render({"a": a, "b": b}) for a, b in (left, right)]
    assert (names[0] == names[1]) == (list(map(spelling, left)) == list(map(spelling, right)))


@given(st.dictionaries(st.text(min_size=1, max_size=4), values, max_size=3), st.data())
def test_default_keys_stay_apart(first: dict[str, object], data: st.DataObject) -> None:
    """Two calls share a default key only when their arguments are the same."""

    def anything(**kwargs: object) -> None: ...

    second = data.draw(st.dictionaries(st.text("ab=:1", min_size=1, max_size=4), values, max_size=3))
    names = [key_builder(anything)((), arguments) for arguments in (first, second)]
    same = {k: spelling(v) for k, v in first.items()} == {k: spelling(v) for k, v in second.items()}
    assert (names[0] == names[1]) == same


@given(st.text(min_size=1, max_size=60))
def test_encoding_can_be_undone(text: str) -> None:
    """A value's encoded form is the value again once decoded, and holds nothing that could break a key."""
    encoded = encode(text, compile_template("<a>").unsafe)
    assert unquote(encoded, errors="surrogatepass") == text
    assert not set(encoded) & set(":{}" + string.whitespace + "\x00\x7f")


@given(st.text() | st.text("'\"<>+|:.# ab_{}$f()[]"))
def test_any_text_is_a_template_or_a_lock_key_error(source: str) -> None:
    """Reading a template never fails in any other way."""
    try:
        template = compile_template(source)
    except LockKeyError:
        return
    assert balanced("".join(term if isinstance(term, str) else "value" for term in template.terms))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.binary()
        | st.datetimes()
        | st.uuids()
        | st.decimals()
        | st.datetimes(timezones=st.timezones())
        | st.functions(),
        lambda inner: st.lists(inner) | st.builds(SimpleNamespace, a=inner) | st.tuples(inner, inner),
        max_leaves=4,
    ),
    st.sampled_from(["<v>", "<int:v>", "<uuid:v>", "<slug:v>", "<v.a>", "<v.a|'d'>", "<v|'d'>"]),
)
def test_any_value_gives_a_sound_name_or_a_lock_key_error(value: object, source: str) -> None:
    """Whatever is passed, the name is short, balanced and not empty, or LockKeyError says why not."""
    try:
        name = render(source, v=value)
    except LockKeyError:
        return
    assert 0 < len(name) <= MAX_LENGTH
    assert balanced(name)


@given(st.text(max_size=20))
def test_nothing_is_evaluated(text: str) -> None:
    """An expression in a value stays the text that it is."""

    class Tripwire:
        def __str__(self) -> str:
            raise AssertionError("a value was formatted")

        __repr__ = __format__ = __str__  # type: ignore[assignment]

    expression = "{v.__class__}" + text
    assert (
        unquote(render("<s>+':'+<v|'d'>", s=expression, v=None), errors="surrogatepass") == f"{expression}:d"
    )
    with pytest.raises(LockKeyError):
        render("<v>", v=Tripwire())


# --- the format style -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "arguments", "name"),
    [
        ("order:{order_id}", {"order_id": 42}, "order:42"),
        ("{order_id}", {"order_id": 42}, "42"),
        (
            "order:{order.pk}:line:{line}",
            {"order": SimpleNamespace(pk=7), "line": "a:b"},
            "order:7:line:a%3Ab",
        ),
        ("order:{ order_id }/pay", {"order_id": 42}, "order:42/pay"),
        ("order:{order_id:int}", {"order_id": "007"}, "order:7"),
        ("order:{order_id|none}", {"order_id": None}, "order:none"),
        ("order:{order_id|none:uuid}", {"order_id": ""}, "order:none"),
    ],
)
def test_a_format_style_template_is_rendered(source, arguments, name):
    """It means what the quoted style means, with the same encoding of values."""
    assert compile_template(source).render(arguments) == name


@pytest.mark.parametrize(
    ("source", "column", "reason"),
    [
        ("order:{}", 8, "a value is a parameter"),
        ("order:{order_id", 7, "this brace has no partner"),
        ("order:{{order_id}}", 7, "this brace has no partner"),
        ("order:{order_id!r}", 8, "no conversions"),
        ("order:{order_id!}", 8, "in format spec"),
        ("order:{order_id:05d}", 8, "'05d' is not a converter"),
        ("order:{ids[0]}", 8, "indexes belongs in a callable"),
        ("order:{order.get()}", 8, "calls or indexes"),
        ("order:{_secret}", 8, "is private"),
        ("order:{a}{b}", 11, "two values are adjacent"),
    ],
)
def test_what_a_format_style_template_may_not_hold(source, column, reason):
    """Each mistake is reported with its column."""
    with pytest.raises(LockKeyError, match=reason) as caught:
        compile_template(source)
    assert f"column {column}:" in str(caught.value)
    assert f"\n    {source}\n" in str(caught.value)


def test_a_format_style_name_is_checked_at_decoration():
    """A misspelled parameter is an error before any call, with a suggestion."""

    def pay(order_id): ...

    with pytest.raises(
        LockKeyError, match=r"'order_di' is not a parameter of pay .*did you mean \"order:{order_id}\""
    ):
        key_builder(pay, "order:{order_di}")


@pytest.mark.parametrize(
    ("source", "better"),
    [
        ("order:{order_id}", "order:{order_id|none}"),
        ("order:{order_id:int}/pay", "order:{order_id|none:int}/pay"),
        ("'order:'+<order_id>", "'order:'+<order_id|'none'>"),
        ("'order:'+<int:order_id>+\"'s\"", "'order:'+<int:order_id|'none'>+\"'s\""),
    ],
)
def test_an_error_answers_in_the_style_that_was_written(source, better):
    """None would be one lock for unrelated callers; the whole key with a default can be pasted."""
    with pytest.raises(LockKeyError, match="is None") as caught:
        compile_template(source).render({"order_id": None})
    assert f'"{better}"' in str(caught.value)
    assert "none" in compile_template(better).render({"order_id": None})
