"""A bookshop that knows nothing of this package, on a table of its own."""

from collections.abc import Iterator

import pytest
from django.db import connection

from inventory.testing.pytest_plugin import oversell
from tests.racing.bookshop import Book

__all__ = ["oversell"]


@pytest.fixture
def book(transactional_db: None) -> Iterator[Book]:
    """A book of which there are ten."""
    with connection.schema_editor() as editor:
        editor.create_model(Book)
    try:
        yield Book.objects.create(stock=10)
    finally:
        connection.close()
        with connection.schema_editor() as editor:
            editor.delete_model(Book)
