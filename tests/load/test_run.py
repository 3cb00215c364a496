"""One short, real load run: the web server on the tests' servers, buyers in processes, a worker killed."""

from typing import cast

import pytest

from tests.load import figures
from tests.load.__main__ import main, subjects
from tests.load.database import connect
from tests.load.faults import parse
from tests.load.run import Plan, Subject, try_out
from tests.load.servers import Servers


class TestsServers:
    """The tests' database and Redis, which must not be crashed or flushed: others use them too."""

    __test__ = False
    environment: dict[str, str] = {}  # noqa: RUF012 - tests.settings finds them

    def connect(self):
        """Open a connection to the tests' database."""
        return connect()


@pytest.mark.whole
@pytest.mark.django_db(transaction=True)
def test_a_killed_worker_costs_no_order_and_no_unit():
    """Buyers at a constant rate, a worker killed among them: every acknowledged order is there, once."""
    plan = Plan(rate=40, seconds=2, faults=parse("kill"), locust=0, threads=4)
    run = try_out(
        Subject("conditional_update"),
        plan,
        cast("Servers", TestsServers()),
        {"DJANGO_SETTINGS_MODULE": "tests.settings"},
    )
    assert run["verdict"]["details"] == []
    assert [fault["name"] for fault in run["faults"]] == ["kill"]
    seen = figures.summary(run["visits"], plan.seconds)
    assert sum(seen[kind] for kind in figures.KINDS) == len(run["visits"])
    assert len(run["visits"]) == 80
    assert seen["sold"] > 0
    assert seen["refused"] > 0  # the delivery was half of what the buyers wanted of the hot products
    assert run["acknowledged"] <= run["orders"] <= run["acknowledged"] + run["unknown"]


def test_only_sound_strategies_are_loaded():
    """A broken one would rightly fail, and a misspelt one is named."""
    assert {"row_lock", "local_lock"} <= {subject.name for subject in subjects(["all"])}
    assert [subject.one_process for subject in subjects(["local_lock", "row_lock"])] == [True, False]
    for name in ("lost_update", "row_lok"):
        with pytest.raises(SystemExit, match=f"{name}.*no sound strategy"):
            subjects([name])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--rate", "0"], "--rate 0 must be above 0"),
        (["--seconds", "nan"], "--seconds nan must be above 0"),
        (["--faults", "fire"], "unknown fault 'fire'"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(options, complaint, capsys):
    """The message names the option and the value; no server was started."""
    with pytest.raises(SystemExit):
        main(options)
    assert complaint in capsys.readouterr().err
