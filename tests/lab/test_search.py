"""The search of `oversell --search`: what it finds of real buyers, and what it says."""

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from orders.lab.models import Product
from orders.lab.strategies import STRATEGIES
from tests.lab.interleaving import close_idle_connections
from tests.locking.support.helpers import look_for_deadlocks_soon, publishing

pytestmark = pytest.mark.django_db(transaction=True)

WHOLE = pytest.mark.whole
BROKEN = [
    "lost_update",
    *(
        pytest.param(name, marks=WHOLE)
        for name in (
            "negative_stock",
            "early_release",
            "lock_after_read",
            "expired_lease",
            "setnx_expire_del",
        )
    ),
]
SOUND = [
    "row_lock",
    *(
        pytest.param(name, marks=WHOLE)
        for name in ("version_cas", "conditional_update", "redis_lock", "redis_spin_lock", "local_lock")
    ),
]


def searched(name, capsys):
    """Return what the command says; it fails if a strategy did not do as labelled."""
    call_command("oversell", "--search", name)
    return capsys.readouterr().out


@pytest.mark.parametrize("strategy", BROKEN)
def test_a_broken_strategy_is_found(strategy, capsys, monkeypatch):
    """The schedule printed has both buyers served, and sells two of one."""
    monkeypatch.setattr(STRATEGIES["expired_lease"], "expiry", 0.1)  # what is waited for in each schedule
    said = searched(strategy, capsys)
    assert f"{strategy}: " in said
    assert "oversell. The shortest, of " in said
    assert said.count("  sold\n") == 2
    assert said.endswith("sold 2 of 1\n")
    assert not Product.objects.exists()


@pytest.fixture
def found_soon(monkeypatch):
    """Have PostgreSQL, and the waiters for Redis locks, look for a circle ten times sooner."""
    close_idle_connections()
    options = connection.settings_dict["OPTIONS"]
    sooner = f"{options.get('options', '')} -c deadlock_timeout=100ms"
    monkeypatch.setitem(options, "options", sooner)
    look_for_deadlocks_soon(monkeypatch)
    yield
    close_idle_connections()


@WHOLE
@pytest.mark.usefixtures("found_soon")
@pytest.mark.parametrize("strategy", ["unsorted_locks", "unsorted_redis_locks"])
def test_a_deadlock_is_found(strategy, capsys):
    """The fault is that both wait for each other."""
    with publishing():  # a circle of Redis locks is found by what their waiters publish
        assert "end in a deadlock" in searched(strategy, capsys)


@pytest.mark.parametrize("strategy", SOUND)
def test_no_schedule_of_a_sound_strategy_oversells(strategy, capsys):
    """More than one schedule was run, and none sells the last piece twice."""
    said = searched(strategy, capsys)
    assert "none oversells" in said
    assert int(said.split()[1]) > 1


def test_without_a_name_all_are_searched(capsys, monkeypatch):
    """Each strategy that two buyers of one process can be led through has its report."""
    module = "orders.lab.management.commands.oversell"
    monkeypatch.setattr(f"{module}.search", lambda name: name)
    monkeypatch.setattr(f"{module}.report", lambda name, found, console: console.print(name) or True)
    call_command("oversell", "--search")
    assert {"lost_update", "row_lock", "conditional_update"} <= set(capsys.readouterr().out.split())


def test_an_unknown_strategy_is_refused():
    """The message names those that there are."""
    with pytest.raises(CommandError, match="lost_update"):
        call_command("oversell", "--search", "nonesuch")
