"""What tests of observers share: one that is heard for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from locking.signals import Observer, observe, stop_observing

Heard = TypeVar("Heard", bound=Observer)


@contextmanager
def observed_by(observer: Heard) -> Iterator[Heard]:
    """Have `observer` hear of everything inside the block."""
    observe(observer)
    try:
        yield observer
    finally:
        stop_observing(observer)
