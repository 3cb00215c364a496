"""What is read out of the traces."""

from orders.lab.race.evidence import explain_fault, explain_order, same_reading, shared_lock
from orders.lab.race.messages import Mark, Outcome


def seller(number, *marks):
    """A buyer who got one, with a trace of (name, at) or (name, at, on_hand)."""
    return Outcome(number, "sold", trace=tuple(Mark(*mark) for mark in marks))


def holder(number, begin, end):
    """A buyer who got one under a lock."""
    return seller(number, ("locked", begin), ("read", begin, 10 - number), ("written", end))


def test_buyers_who_read_the_same_stock_are_named():
    """The largest group that sold from one reading is named, with the time in which all of them read."""
    outcomes = [seller(n, ("read", 1 + n / 1000, 10)) for n in (3, 7, 5)] + [seller(9, ("read", 2.0, 9))]
    assert same_reading(outcomes) == "buyers 3, 5 and 7 all read 10 within 4.0 ms and all sold from it."


def test_a_long_list_of_buyers_is_cut():
    """Three names and a number are enough."""
    outcomes = [seller(n, ("read", n / 100, 10)) for n in range(1, 41)]
    assert same_reading(outcomes).startswith("buyers 1, 2, 3 and 37 more all read 10 within 390 ms")


def test_only_the_last_reading_of_a_buyer_who_sold_counts():
    """A reading that was discarded, or that led to a refusal, did no harm."""
    again = seller(1, ("read", 1.0, 10), ("overtaken", 1.1), ("read", 1.2, 9))
    refused = Outcome(2, "refused", trace=(Mark("read", 1.0, 9),))
    assert same_reading([again, refused, seller(3, ("read", 1.0, 10))]) == ""


def test_two_holders_at_once_are_named_with_their_time_together():
    """Sections under one lock that overlap are the proof that it is none."""
    outcomes = [holder(4, 1.0, 1.030), holder(9, 1.018, 1.040), holder(2, 2.0, 2.1)]
    assert shared_lock(outcomes) == "buyers 4 and 9 both held the lock, for 12 ms."
    assert explain_fault(outcomes) == shared_lock(outcomes)


def test_a_section_inside_a_longer_one_is_found_behind_a_shorter():
    """Overlap is looked for with the holder that ends last, not with the one that began last."""
    outcomes = [holder(1, 1.0, 1.5), holder(2, 2.0, 2.9), holder(3, 2.1, 2.2), holder(4, 2.5, 3.0)]
    assert "buyers 2 and 3" in shared_lock(outcomes)


def test_a_lock_that_held_is_praised_only_when_sections_never_met():
    """Sections one after another are the evidence of a lock; one holder alone is none."""
    assert (
        explain_order([holder(1, 1.0, 1.1), holder(2, 1.1, 1.2)])
        == "2 sales were made under the lock, never two at a time."
    )
    assert explain_order([holder(1, 1.0, 1.1), holder(2, 1.05, 1.2)]) == ""
    assert explain_order([holder(1, 1.0, 1.1)]) == ""


def test_overtaken_buyers_are_counted():
    """Optimistic strategies show their work by the tries that they gave up."""
    outcomes = [seller(1, ("overtaken", 1.0), ("overtaken", 1.1)), seller(2, ("overtaken", 1.0))]
    assert explain_order(outcomes).startswith("3 times a buyer was overtaken")


def test_no_trace_no_claim():
    """Nothing is made up where the traces are silent."""
    assert explain_fault([]) == explain_order([]) == explain_fault([Outcome(1, "sold")]) == ""
