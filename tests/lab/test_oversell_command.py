"""`manage.py oversell` as a person types it: answers, files, exit status, and the ways to stop it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path

import psutil
import pytest
import redis
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection

from orders.lab.models import Order, Product
from orders.lab.race import lab_products
from orders.lab.strategies import STRATEGIES
from tests.support.processes import until

SMALL = ["--buyers", "6", "--stock", "2", "--processes", "2"]
PATIENCE = 60.0  # seconds: a busy machine starts a command and its workers in ten
PRESENCE = b"holdfast_presence:"


def oversell(*args):
    """Run the command in this process and return what it printed."""
    out = StringIO()
    call_command("oversell", *SMALL, *args, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gap", "20"], "write 20ms or 20s"),
        (["--buyers", "0"], "buyers is 0"),
        (["--processes", "7"], "only 6 buyers"),
        (["--strategy", "rowlock"], "'rowlock' is unknown: choose from all, "),
        (["--strategy", "lost_update", "--expect-safe"], "none of these is sound"),
        (["--json", "/nowhere/out.json"], "there is no folder /nowhere"),
        (["--report", "/tmp"], "/tmp is a folder"),
        (["--buyers", "many"], "'many' is not a whole number"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(args, words):
    """No database is allowed in this test: the refusal needs none, and names the value and the way out."""
    with pytest.raises(CommandError, match=words.replace("(", r"\(")) as refusal:
        oversell(*args)
    assert refusal.value.returncode in (1, 2)


@pytest.mark.django_db(transaction=True)
def test_a_race_prints_a_table_and_writes_its_files(tmp_path):
    """The table, the sentence for each, the JSON and the page tell the same story."""
    figures, page = tmp_path / "out.json", tmp_path / "out.html"
    printed = oversell("--strategy", "lost_update,row_lock", "--json", str(figures), "--report", str(page))
    assert "unaccounted" in printed
    assert "row_lock: exact" in printed
    assert "2 of 2" in printed
    document = json.loads(figures.read_text())
    assert document["kept"] is True
    assert [v["name"] for v in document["variants"]] == ["lost_update", "row_lock"]
    assert document["parameters"] == {"buyers": 6, "stock": 2, "gap_ms": 20.0, "processes": 2}
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.django_db(transaction=True)
def test_a_sound_strategy_that_is_not_exact_fails_the_command(monkeypatch):
    """With the label of a broken strategy falsified, the status is 1 and the message says which and why."""
    monkeypatch.setattr(STRATEGIES["lost_update"], "sound", True)
    with pytest.raises(CommandError, match="lost_update: NOT EXACT") as failure:
        oversell("--strategy", "lost_update", "--expect-safe", "--gap", "1s")  # it gets one try only
    assert failure.value.returncode == 1


@pytest.mark.django_db(transaction=True)
def test_a_broken_strategy_that_is_not_shown_fails_the_command():
    """Proof that can't fail is none: one buyer alone shows nothing, and that is status 1."""
    with pytest.raises(CommandError, match="lost_update: NOT SHOWN broken in 5 tries") as failure:
        oversell("--strategy", "lost_update", "--buyers", "1", "--processes", "1")
    assert failure.value.returncode == 1


@pytest.mark.django_db(transaction=True)
def test_a_database_without_tables_is_one_clear_sentence(monkeypatch):
    """A forgotten migration is named, not shown as a stack of frames."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE lab_product RENAME TO elsewhere")
        try:
            with pytest.raises(CommandError, match=r"run `python manage.py migrate` first"):
                oversell("--strategy", "row_lock")
        finally:
            cursor.execute("ALTER TABLE elsewhere RENAME TO lab_product")


@pytest.mark.django_db(transaction=True)
def test_a_redis_that_is_down_is_one_clear_sentence(settings):
    """What can't be prepared ends the race with the reason and the way out, and leaves no product."""
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    with pytest.raises(CommandError, match=r"Redis can't be used .* REDIS_URL"):
        oversell("--strategy", "redis_script")
    assert not Product.objects.exists()


class Run:
    """A real `manage.py oversell` in a process of its own, in the middle of its race."""

    def __init__(self, strategy):
        self.sessions_before = sessions()
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "oversell", "--strategy", strategy, *SMALL, "--gap", "10s"],
            cwd=Path(settings.BASE_DIR),
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_the_terminal,
        )
        until(self.in_mid_sale)
        self.workers = psutil.Process(self.process.pid).children(recursive=True)

    def in_mid_sale(self):
        """Whether a buyer rests: its transaction open and quiet, or the units in Redis taken already."""
        assert self.process.poll() is None, self.process.communicate()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND state = 'idle in transaction' AND now() - state_change > interval '200 ms'"
            )
            rests = cursor.fetchone()[0] > 0
        # The stock is created in a transaction, too, which may take long on a busy machine.
        return (rests and Product.objects.exists()) or self.units_taken()

    def units_taken(self):
        """Whether the stock in Redis is down to nothing."""
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            return any(client.get(key) == b"0" for key in client.keys("*:stock:*"))

    def has_left_the_database(self):
        """Whether PostgreSQL has ended its sessions, and with them its locks and transactions."""
        return sessions() <= self.sessions_before

    def end(self):
        """Make sure that nothing of it outlives the test."""
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        self.process.kill()
        self.process.communicate()


def sessions():
    """Return the sessions of this database, by PostgreSQL's process numbers."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
        return {pid for (pid,) in cursor.fetchall()}


def processes_in(database):
    """Return the processes that say in Redis that they lock; a shop that other tests have served may, too."""
    records = database.mget([PRESENCE, *database.scan_iter(PRESENCE + b"?*")])  # the first is their list
    return {json.loads(record)["pid"] for record in records if record is not None}


def hear_the_terminal():
    """Under nohup the tests ignore SIGHUP, and what they start would inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def running(request):
    """Start a run with the strategy that the test names."""
    run = Run(request.param)
    yield run
    run.end()


STOPPABLE = {  # what a buyer leaves is the strategy's, how it is stopped the command's: each once
    "row_lock": signal.SIGHUP,
    "redis_lock": signal.SIGTERM,
    "redis_spin_lock": signal.SIGINT,
    "redis_script": signal.SIGINT,
    "setnx_expire_del": signal.SIGINT,
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("running", "number"), STOPPABLE.items(), indirect=["running"])
def test_an_interrupted_race_leaves_nothing_behind(running, number, redis_database):
    """After Ctrl-C in mid-sale there is no process, no lock, no key, no product and no half order."""
    running.process.send_signal(number)
    running.process.send_signal(number)  # people press it twice
    _, errors = running.process.communicate(timeout=PATIENCE)
    assert running.process.returncode == 128 + number
    assert f"stopped by {number.name}" in errors
    assert not any(worker.is_running() for worker in running.workers)
    # A lock's token counter is no lock, nor are figures: they have to outlive it, and end by themselves.
    outliving = (b"redisson_lock_token:", b"holdfast_held:", b"holdfast_figures:", b"holdfast_swept:")
    keys = {key for key in redis_database.scan_iter() if not key.startswith((*outliving, PRESENCE))}
    assert keys == {b"holdfast:tests"}
    assert processes_in(redis_database).isdisjoint({running.process.pid, *(w.pid for w in running.workers)})
    assert not Product.objects.exists()
    assert not Order.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("running", ["redis_lock"], indirect=True)
def test_a_killed_race_takes_its_workers_along_and_is_swept_by_the_next(running):
    """Workers notice that their parent is gone; what it could not clear, the next race does."""
    running.process.kill()
    running.process.wait()
    _, alive = psutil.wait_procs(running.workers, timeout=20)
    assert alive == []
    until(running.has_left_the_database)
    assert Product.objects.exists()
    assert lab_products.sweep() == 1
    assert not Product.objects.exists()
    assert not Order.objects.exists()
