from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from locking.inspection.held import HeldLock
from locking.models import ImmutableRow, LockEvent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def event():
    """An audit row."""
    hold = HeldLock(backend="default", name="a", key="a", kind="lock", owner="o:1")
    made = LockEvent.of(hold, LockEvent.Action.FORCE_RELEASE, "why", "ada")
    made.save()
    return made


def aged(event, days):
    """Make another row that is so old, behind the trigger's back."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO locking_lockevent (at, action, done, actor, reason, backend, name, key, kind, owner,"
            " holder, token, details) SELECT %s, action, done, actor, %s, backend, name, key, kind, owner,"
            " holder, token, details FROM locking_lockevent WHERE id = %s",
            [timezone.now() - timedelta(days=days), f"{days} days", event.pk],
        )


@pytest.mark.parametrize(
    "step",
    [
        lambda event: event.save(),
        lambda event: event.delete(),
        lambda event: LockEvent.objects.update(reason="better"),
        lambda event: LockEvent.objects.all().delete(),
    ],
)
def test_the_model_refuses_to_change_the_audit(event, step):
    """Neither a row nor a query changes or deletes what is written."""
    with pytest.raises(ImmutableRow, match="audit"):
        step(event)
    assert LockEvent.objects.get().reason == "why"


@pytest.mark.parametrize("sql", ["UPDATE locking_lockevent SET reason = ''", "DELETE FROM locking_lockevent"])
def test_postgresql_refuses_too(event, sql):
    """Anyone who comes with SQL of his own is refused by the database."""
    with pytest.raises(DatabaseError, match="immutable"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)
    assert LockEvent.objects.get().reason == "why"


def test_pruning_deletes_what_is_old_enough(event, capsys):
    """Rows beyond the age go, younger ones stay, and the door is shut again."""
    aged(event, 91)
    aged(event, 89)
    call_command("prune_lock_events", "--older-than", "90d")
    assert "1 lock events deleted" in capsys.readouterr().out
    assert sorted(LockEvent.objects.values_list("reason", flat=True)) == ["89 days", "why"]
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM locking_lockevent")


@pytest.mark.parametrize("wrong", [["--older-than", "soon"], ["--older-than", "0d"], []])
def test_an_age_that_is_none_is_explained(event, wrong):
    """Without a plain age nothing is deleted."""
    with pytest.raises(CommandError, match="older-than"):
        call_command("prune_lock_events", *wrong)
    assert LockEvent.objects.exists()
