"""A run has a process of its own, under the project's own lock, and leaves nothing behind."""

import errno
import os
import secrets
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.models.functions import Now

from locking import LockNotAcquired, get_lock
from locking.core.handler import locks
from locking.inspection.held import holds_of
from locking.testing.contract.base import counted_waiters
from orders.lab import redis_store
from orders.lab.models import LabEvent, LabRun, Order, Product
from orders.lab.pages import limits, supervisor
from orders.lab.race import private_redis
from orders.lab.race.fault_injection import claim, once_a_round
from orders.lab.race.messages import Fault, Round
from orders.lab.race.private_redis import PrivateRedis
from tests import ROOT
from tests.locking.support.helpers import take_from
from tests.support.processes import until

RACE = {"buyers": 8, "stock": 2, "gap": 20, "processes": 2, "strategy": "row_lock", "fault": "none"}
PATIENCE = 60.0
A_MOMENT = 5.0
RACE_KIND = LabRun.Kind.RACE
ENDLESS = RACE | {"gap": 300, "stock": 100, "buyers": 40, "processes": 1}  # ends when it is ended

pytestmark = pytest.mark.django_db(transaction=True)


def said(run, kind):
    """The first event of this kind, or None."""
    found = run.events.filter(sender="run", data__type=kind).first()
    return found and found.data


def ended(run):
    """Wait for the end of a run and of its supervisor; return its last event."""
    last = until(lambda: said(run, "ended"), "the run has ended")
    for thread in threading.enumerate():
        if thread.name == "lab":
            thread.join(PATIENCE)
    return last


def the_process(run):
    """The process of a run."""
    for process in psutil.process_iter(["cmdline"]):
        if run.pk in (process.info["cmdline"] or []):
            return process
    return None


def ends_at_once(process):
    """Whether a process is gone within seconds; one that isn't is killed."""
    try:
        process.wait(A_MOMENT)
    except psutil.TimeoutExpired:
        with suppress(psutil.NoSuchProcess):
            process.kill()
        return False
    return True


def runs(pid):
    """Whether a process is at work; a zombie isn't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def nothing_is_left():
    """No product, no order."""
    return not (Product.objects.exists() or Order.objects.exists())


def rounds_of_a_new_race(number):
    """Rounds of products of their own: what was done once a round is noted where every run looks."""
    name = f"{secrets.token_hex(4)}"
    return [Round(f"{name}-{n}", "expired_lease", 0.0, None, 10.0, (1,)) for n in range(1, number + 1)]


def race(**more):
    """Run a race to its end; return its result."""
    run = supervisor.start(RACE_KIND, RACE | more)
    assert ended(run)["why"] == "done", list(run.events.values_list("data", flat=True))
    assert nothing_is_left()
    return said(run, "result")


@pytest.fixture(autouse=True)
def no_run_is_left():
    """Whatever a test did, no process of a run outlives it.

    One that is ended while it starts may have forked a child to try a folder, which has the run's command
    line until it calls `exec` a moment later.
    """
    yield
    for run in LabRun.objects.all():
        process = the_process(run)
        if process is not None and not ends_at_once(process):
            pytest.fail(f"{run} was still running")


def test_a_race_tells_everything_that_the_page_draws():
    """Figures, each buyer's marks with their lines, the stock at each change, evidence in both languages."""
    result = race()
    assert (result["sold"], result["left"], result["unaccounted"], result["exact"]) == (2, 0, 0, True)
    assert [buyer["number"] for buyer in result["buyers"]] == list(range(1, 9))
    winner = next(buyer for buyer in result["buyers"] if buyer["answer"] == "sold")
    names = [mark[0] for mark in winner["marks"]]
    assert names == ["waiting", "locked", "read", "decided", "written", "recorded", "committed"]
    assert all(mark[3] for mark in winner["marks"])
    assert result["stock"]["left"][0] == 2
    assert result["stock"]["sold"][-1] == 2
    assert result["evidence"]["en"] == "2 sales were made under the lock, never two at a time."
    assert "2 笔销售" in result["evidence"]["zh-hans"]


def test_one_race_at_a_time_and_a_visitor_may_stop_it(monkeypatch):
    """The lock is held while a race runs; `stop` sends its buyers home, clears up, and frees the lock."""
    monkeypatch.setattr(supervisor, "ENDING", 0.0)
    run = supervisor.start(RACE_KIND, ENDLESS)
    assert get_lock(supervisor.RACE_LOCK).locked()
    with pytest.raises(LockNotAcquired):
        supervisor.start(RACE_KIND, RACE)
    until(lambda: said(run, "round"), "the race has begun")
    LabEvent.objects.create(run=run, sender="visitor", data={"say": "stop"})
    assert ended(run)["why"] == "stopped"
    assert nothing_is_left()
    assert not get_lock(supervisor.RACE_LOCK).locked()


def test_a_run_that_has_reported_its_end_refuses_no_other(monkeypatch):
    """Its process may take a while to be gone; the next visitor waits for that and is not refused."""
    monkeypatch.setattr(supervisor, "ENDING", 0.01)
    LabRun.objects.create(kind=RACE_KIND, parameters=RACE, ended_at=Now())
    with ThreadPoolExecutor() as pool, counted_waiters(locks["default"]) as waiters:
        with get_lock(supervisor.RACE_LOCK):
            answer = pool.submit(supervisor.start, RACE_KIND, RACE)
            until(lambda: answer.done() or waiters.number() > 1, "the next run has been refused, and waits")
        run = answer.result(PATIENCE)
    assert ended(run)["why"] == "done"


def test_a_killed_run_is_reported():
    """The supervisor says the end of a run that can't, and frees the lock."""
    run = supervisor.start(RACE_KIND, ENDLESS)
    until(lambda: said(run, "round"), "the race has begun")
    the_process(run).kill()
    assert ended(run)["why"] == "died"
    assert not get_lock(supervisor.RACE_LOCK).locked()


def waits_for_its_end():
    """In place of a run's process: it says nothing, and goes when its input ends or it is killed."""
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def test_a_run_that_died_with_the_database_is_reported(monkeypatch):
    """The server has closed every connection and takes none for a moment: the end is said after that."""
    process = waits_for_its_end()
    monkeypatch.setattr(supervisor, "_spawn", lambda run: process)
    run = supervisor.start(RACE_KIND, RACE)
    refusals = iter(range(3))
    connect = DatabaseWrapper.get_new_connection

    def restarting(wrapper, parameters):
        if threading.current_thread().name == "lab" and next(refusals, None) is not None:
            raise OperationalError("the database system is starting up")
        return connect(wrapper, parameters)

    monkeypatch.setattr(DatabaseWrapper, "get_new_connection", restarting)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    process.kill()
    assert ended(run)["why"] == "died"
    assert not get_lock(supervisor.RACE_LOCK).locked()


def test_a_run_that_got_no_process_has_ended(monkeypatch):
    """Without room on the machine the visitor gets an error, and the run isn't listed as running."""

    def refuse(run):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(supervisor, "_spawn", refuse)
    with pytest.raises(OSError, match="temporarily"):
        supervisor.start(RACE_KIND, RACE)
    assert not supervisor.running(RACE_KIND)


def test_a_race_does_not_go_on_without_its_lock():
    """Its lease is the shop's short one, so that a killed server closes the lab for seconds; when an operator
    breaks it, the race is ended.
    """
    run = supervisor.start(RACE_KIND, ENDLESS)
    (hold,) = holds_of(supervisor.RACE_LOCK)
    assert 0 < (hold.remaining or 0) <= settings.LOCKING["default"]["WATCHDOG_TTL"]
    assert take_from(hold.name, owner=hold.owner)
    ended(run)
    assert not said(run, "result")
    assert nothing_is_left()


def test_a_run_ends_when_its_web_server_is_gone():
    """The pipe from the server ends, so the run ends, clears up and says why."""
    run = LabRun.objects.create(kind="race", parameters=ENDLESS)
    process = subprocess.Popen(
        [sys.executable, "-m", "orders.lab.pages.runner", run.pk],
        cwd=ROOT,
        stdin=subprocess.PIPE,
    )
    until(lambda: said(run, "round"), "the race has begun")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    assert said(run, "ended")["why"] == "left"
    assert nothing_is_left()


def test_a_holder_that_stands_still_oversells_without_a_fence_and_not_with_one():
    """Its process is stopped for longer than its lease: the fence refuses it, a plain lease doesn't."""
    crowd = {"buyers": 12, "stock": 4, "fault": "pause"}
    broken = race(strategy="expired_lease", **crowd)
    assert (broken["sold"], broken["oversold"]) == (5, 1)
    fenced = race(strategy="fenced_lock", **crowd)
    assert (fenced["sold"], fenced["unaccounted"], fenced["exact"]) == (4, 0, True)


def test_others_sell_while_a_fenced_holder_stands_still_and_its_return_is_refused():
    """It is stopped between lock and fence: its lease ends, the next token sells, its own is refused."""
    fenced = race(strategy="fenced_lock", buyers=12, stock=4, fault="pause")
    victim = fenced["buyers"][-1]
    steps = [mark[0] for mark in victim["marks"]]
    assert steps[:3] == ["waiting", "locked", "stale_token"]
    (_, locked, _, _, lease), (_, refused, *_) = victim["marks"][1:3]
    assert lease["token"] == 1
    assert lease["ends"] - locked == pytest.approx(limits.PAUSED_LEASE * 1000, abs=1)
    assert refused - locked >= limits.PAUSE * 1000
    sold = [buyer for buyer in fenced["buyers"] if buyer["answer"] == "sold"]
    assert len(sold) == 4
    asked = victim["marks"][0][1]  # the server's lease has begun after that
    assert all(asked + limits.PAUSED_LEASE * 1000 <= buyer["to"] for buyer in sold)
    assert min(at for buyer in sold for step, at, *_ in buyer["marks"] if step == "locked") < refused


def test_a_killed_redis_oversells_without_a_fence_and_not_with_one():
    """Redis forgets who holds the lock: the fence doesn't, and every buyer gets an answer."""
    crowd = {"buyers": 12, "stock": 4, "fault": "redis"}
    assert race(strategy="expired_lease", **crowd)["shown_broken"]
    fenced = race(strategy="fenced_lock", **crowd)
    assert (fenced["sold"], fenced["unaccounted"], fenced["exact"]) == (4, 0, True)


def test_who_has_killed_redis_goes_on_when_it_is_back(settings, monkeypatch):
    """However slowly it starts: before that no other buyer could come in, and the race would show nothing."""
    monkeypatch.setattr(private_redis, "DOWN_FOR", 1.0)
    (round_,) = rounds_of_a_new_race(1)
    try:
        with PrivateRedis() as server:
            settings.REDIS_URL = server.url
            once_a_round(round_, Fault(kill=server.pidfile), 1)
            assert redis_store.client().ping()
    finally:
        claim(round_.sku).unlink(missing_ok=True)


def test_redis_is_killed_in_each_round(settings):
    """Of several variants each has the server killed that is there then, not the dead one before it."""
    rounds = rounds_of_a_new_race(2)
    try:
        with PrivateRedis() as server:
            settings.REDIS_URL = server.url
            pids = [server.pidfile.read_text()]
            for round_ in rounds:
                once_a_round(round_, Fault(kill=server.pidfile), 1)
                pids.append(server.pidfile.read_text())
        assert len(set(pids)) == 3
    finally:
        for round_ in rounds:
            claim(round_.sku).unlink(missing_ok=True)


def test_a_lease_shorter_than_the_gap_is_safe_with_a_fence_and_of_no_use():
    """Nothing is oversold, and a buyer who can't finish in time hears that the shop is busy."""
    result = race(strategy="fenced_lock", fault="lease", gap=100)
    assert result["oversold"] == result["unaccounted"] == 0


def test_the_private_redis_comes_back_and_goes_with_its_owner():
    """Killed, it is started again; and it doesn't outlive a process that is killed itself."""
    with PrivateRedis() as server:
        first = server.pid
        os.kill(first, signal.SIGKILL)
        until(lambda: server.pid != first, "another server is there")
    code = (
        "import sys, time; from orders.lab.race.private_redis import PrivateRedis\n"
        "with PrivateRedis() as server:\n    print(server.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    orphan = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()
    until(lambda: not runs(orphan), "the server has gone with its owner")


def test_the_private_redis_may_end_while_it_is_started_again(monkeypatch):
    """A visitor stops the race at that moment: the new server ends as well, without a wait for it."""
    starting, stopping = threading.Event(), threading.Event()
    server = PrivateRedis()
    start = server._start

    def slow_start():
        starting.set()
        assert stopping.wait(PATIENCE)
        return start()

    monkeypatch.setattr(server, "_start", slow_start)
    over = server._over.set

    def end():
        over()
        stopping.set()

    def give_up():
        if runs(server.pid):
            os.kill(server.pid, signal.SIGKILL)

    monkeypatch.setattr(server._over, "set", end)
    rescue = threading.Timer(PATIENCE, give_up)
    with server:
        os.kill(server.pid, signal.SIGKILL)
        assert starting.wait(PATIENCE)
        rescue.start()
    assert rescue.is_alive(), "it ended only because the test ended it"
    rescue.cancel()
    assert not runs(server.pid)


def test_a_session_of_steps_runs_under_a_semaphore_and_sells_the_last_piece_twice():
    """Both read before either writes; the events say which line each executes, and how it ended."""
    run = supervisor.start(LabRun.Kind.STEPS, {"strategy": "lost_update"})
    assert get_lock(supervisor.RACE_LOCK).locked() is False
    until(lambda: said(run, "steps"), "the session has begun")

    for who in "AABB" + "A" * 5 + "B" * 5:
        step(run, who)
    assert ended(run)["why"] == "done"
    last = seen(run)
    assert (last["sold"], last["left"]) == (2, 0)
    assert nothing_is_left()


def seen(run):
    """Return what the session reported last."""
    return run.events.filter(sender="run", data__type="steps").last().data


def step(run, who):
    """Lead a buyer on, and wait until it has moved."""
    until(lambda: seen(run)["lanes"][who]["state"] in ("parked", "done"), "it has arrived")
    before = seen(run)["lanes"][who]
    LabEvent.objects.create(run=run, sender="visitor", data={"say": who})
    until(lambda: before["state"] == "done" or seen(run)["lanes"][who] != before, "it has moved")
