"""The fixture `oversell`: races a team's own checkout, and fails with what was sold too many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Oversell = Callable[..., Any]


@pytest.fixture
def oversell(transactional_db: None, tmp_path: Path) -> Oversell:
    """Return the function that races `sell` and fails if more is sold than there is.

    Example::

        def test_the_last_book_is_sold_once(oversell):
            book = Book.objects.create(stock=10)
            oversell(lambda: buy(book.pk), buyers=40, stock=10)

    See `inventory.racing.race` for its arguments. It needs pytest-django. The test's data is committed,
    because the buyers have connections of their own.
    """
    from inventory.racing import race
    from inventory.racing.picture import as_svg, as_text

    def run(sell: Any, buyers: int = 40, stock: Any = 10, **options: Any) -> Any:
        result = race(sell, buyers=buyers, stock=stock, **options)
        if not result.exact:
            picture = tmp_path / "oversell.svg"
            picture.write_text(as_svg(result), encoding="utf-8")
            pytest.fail(f"{result}\n\n{as_text(result)}\n\nPicture: {picture}", pytrace=False)
        return result

    return run
