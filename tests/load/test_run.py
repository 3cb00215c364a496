"""One short, real load run: the web server on the tests' servers, buyers in processes, a worker killed."""

from typing import cast

import pytest

from orders.lab.models import Product
from tests.load import figures, lesson
from tests.load.__main__ import main, subjects
from tests.load.database import connect
from tests.load.faults import parse
from tests.load.run import Plan, Subject, try_out
from tests.load.servers import Servers
from tests.load.shop import serving


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


@pytest.mark.whole
@pytest.mark.django_db(transaction=True)
def test_the_labs_checkout_sells_what_there_is_by_the_lesson_that_is_named():
    """Sixty buyers over HTTP for twenty units: twenty orders, and the rows say so."""
    assert {"version_cas", "row_lock", "segmented", "redis_lock"} <= set(lesson.names())
    assert not {"lost_update", "local_lock", "expired_lease"} & set(lesson.names())
    with serving({"DJANGO_SETTINGS_MODULE": "tests.settings"} | lesson.ENVIRONMENT, threads=4) as shop:
        run = lesson.try_out("version_cas", shop)
    assert (run["sold"], run["refused"], run["details"]) == (20, 40, [])


@pytest.mark.django_db
def test_rows_that_do_not_add_up_are_named():
    """Units that were not sold, an order that is not there, an answer that is none."""
    product = Product.objects.create(sku="mug", name="mug", on_hand=3)
    assert lesson.judge(product.sku, [(201, "an order"), (500, "")]) == [
        "mug: 0 sold and 3 left of 20",
        "mug: 0 orders, and buyers heard of 1",
        "mug: answers with status [500]",
    ]


def test_strategies_that_are_set_up_are_loaded():
    """All that are set up, or those that are named; one that there isn't is refused."""
    assert {"redis_lock", "combined"} <= {subject.name for subject in subjects(["all"])}
    for name in ("zookeeper_lock", "redis_lok"):
        with pytest.raises(SystemExit, match=f"{name}.*not set up"):
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
