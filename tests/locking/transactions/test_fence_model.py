"""The fence in a model small enough to try everything: no interleaving oversells, and every mutant does."""

from __future__ import annotations

import pytest

from tests.locking.support.fence_model import (
    PROGRAMS,
    READ_COMMITTED,
    REPEATABLE_READ,
    Model,
    Rules,
    World,
    alone,
    explore,
)

pytestmark = pytest.mark.timeout(1200)  # nothing but computing: a busy machine makes it slow

LEVELS = [READ_COMMITTED, REPEATABLE_READ]

AHEAD = World(fence=(5, -1))
"""A holder that has gone used token 5; Redis lost its data, its clock was set right, and it begins at 1."""

MUTANTS = {
    "no fence": Rules(fenced=False),
    "read first": Rules(place="after the read"),
    "fence last": Rules(place="last"),
    "FOR UPDATE": Rules(for_update=True),
    "plain <=": Rules(compare="<="),
    "in a savepoint": Rules(in_savepoint=True),
}
# Where each mutant must be caught. FOR UPDATE changes nothing that a snapshot could notice; read first is
# noticed by REPEATABLE READ, whose snapshot is as old as the read.
CAUGHT = {
    "no fence": [("one", READ_COMMITTED), ("one", REPEATABLE_READ), ("two", READ_COMMITTED)],
    "read first": [("one", READ_COMMITTED)],
    "fence last": [("one", READ_COMMITTED)],
    "FOR UPDATE": [("two", REPEATABLE_READ)],
    "plain <=": [("two", READ_COMMITTED), ("two", REPEATABLE_READ)],
    "in a savepoint": [("one", READ_COMMITTED), ("one", REPEATABLE_READ)],
}


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("start", [World(), AHEAD], ids=["clock true", "clock was ahead"])
def test_no_interleaving_oversells(program, isolation, start):
    """Leases that end, a Redis that forgets, one that mints numbers twice or lower ones: one is sold."""
    found = explore(Model(isolation=isolation, program=PROGRAMS[program], start=start))
    assert found.oversell is None
    assert found.worlds > 100, "the model is walked through, not stuck at its start"


@pytest.mark.parametrize(
    ("mutant", "program", "isolation"), [(name, *where) for name in MUTANTS for where in CAUGHT[name]]
)
def test_every_mutant_oversells(mutant, program, isolation):
    """Each way to get the fence wrong has an interleaving that sells the unit twice."""
    found = explore(Model(MUTANTS[mutant], isolation, PROGRAMS[program]))
    assert found.oversell is not None


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_holder_alone_is_never_refused(program, isolation):
    """However many transactions a hold has, its own token passes each time."""
    assert alone(Model(isolation=isolation, program=PROGRAMS[program])) == "0 commits"


def test_after_a_clock_that_ran_ahead_holders_are_refused():
    """With a token far below the fence's nothing is sold until the clock has caught up."""
    assert alone(Model(start=AHEAD)) == "0 is stale"


def test_plain_less_than_refuses_the_second_transaction_of_a_hold():
    """With `<` alone nothing is oversold, but the second transaction of a hold is refused."""
    plain = Model(Rules(compare="<"), READ_COMMITTED, PROGRAMS["two"])
    assert alone(plain) == "0 is stale"
    assert explore(plain).oversell is None
