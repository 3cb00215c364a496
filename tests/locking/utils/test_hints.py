"""Keywords of other libraries are answered with ours."""

from typing import Any

import pytest

from locking import get_lock
from locking.testing import override_locks
from locking.utils.hints import with_hints


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"timeout": 10}, r"no argument 'timeout': .*ttl= .*wait="),
        ({"blocking_timeout": 3}, r"no argument 'blocking_timeout': .*wait="),
        ({"expire": 3}, r"no argument 'expire': .*ttl="),
        ({"unheard_of": 3}, r"unexpected keyword argument 'unheard_of'"),
    ],
)
def test_get_lock_answers_a_foreign_keyword(options: dict[str, Any], told: str) -> None:
    """The message says what to write; a keyword that nobody has is told by Python."""
    with pytest.raises(TypeError, match=told):
        get_lock("a", **options)


@override_locks()
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"blocking": False}, r"try_acquire\(\)"),
        ({"timeout": 5}, "wait="),
        ({"blocking_timeout": 5}, "wait="),
    ],
)
def test_acquire_answers_a_foreign_keyword(options: dict[str, Any], told: str) -> None:
    """`acquire(blocking=False)` is what most people know."""
    with pytest.raises(TypeError, match=told):
        get_lock("a").acquire(**options)


def test_a_type_error_from_inside_is_left_as_it_is() -> None:
    """Only a call that never began is explained."""

    @with_hints
    def begun(**options: Any) -> None:
        raise TypeError("from inside")

    with pytest.raises(TypeError, match="from inside"):
        begun(timeout=3)


def test_the_signature_is_kept() -> None:
    """Editors and documentation see the function's own arguments."""
    import inspect

    assert list(inspect.signature(get_lock).parameters)[:3] == ["names", "ttl", "wait"]
