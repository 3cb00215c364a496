"""What a race says to the page of its stock."""

from types import SimpleNamespace
from typing import Any

from orders.lab.pages.event_reporter import _stock
from orders.lab.race.audit import Sample
from orders.lab.race.messages import Outcome


def test_the_curve_begins_and_ends_with_what_was_there_however_rare_the_looks_were():
    """The last look before the first buyer is kept, and the first one behind the last."""
    looks = [(99.9, 2, 0), (99.96, 2, 0), (100.035, 1, 1), (100.24, 0, 2), (100.3, 0, 2)]
    outcomes = [Outcome(1, "sold", started=100.0, ended=100.2)]
    result: Any = SimpleNamespace(samples=[Sample(*each) for each in looks], outcomes=outcomes)
    stock = _stock(result, 100.0)
    assert stock == {"ms": [0.0, 35.0, 200.0], "left": [2, 1, 0], "sold": [0, 1, 2]}
