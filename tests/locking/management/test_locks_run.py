"""`locks run`: the command runs under the lock, never without it, and ends as it would by itself."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from locking import get_lock
from locking.inspection.held import holds_of
from locking.keys.names import UNSET
from locking.management.locks.running import Job, run
from locking.signals import Observer, observe, stop_observing
from locking.testing import simulate_contention
from locking.testing.contract.base import until
from tests import ROOT
from tests.locking.support.helpers import elsewhere, take_from
from tests.support.warm import WarmProcess

PATIENCE = 30.0


def job(*command, **options):
    """A job on the lock `a`."""
    defaults = {"name": "a", "backend": "default", "ttl": UNSET, "wait": UNSET}
    return Job(command=command, **{**defaults, **options})


def shell(text, **options):
    """A job that runs a line of shell."""
    return job("sh", "-c", text, **options)


@pytest.fixture
def pipes(tmp_path):
    """Two named pipes by which a command says that it runs, and hears when to go on."""
    names = [str(tmp_path / name) for name in ("started", "go")]
    for name in names:
        os.mkfifo(name)
    return names


@contextmanager
def meanwhile(pipes, step):
    """Do `step` while the command runs: it has written to one pipe and reads from the other."""
    found = []

    def act():
        Path(pipes[0]).read_bytes()
        try:
            found.append(step())
        finally:
            Path(pipes[1]).write_bytes(b"\n")

    thread = threading.Thread(target=act)
    thread.start()
    yield found
    thread.join(PATIENCE)
    assert found, "the command did not start, or the step failed"


def waiting_between(pipes, then=""):
    """The shell's side of `meanwhile`."""
    return f"echo > {pipes[0]}; read line < {pipes[1]}; {then}"


@pytest.mark.parametrize(("text", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_it_ends_as_its_command_does(text, status):
    """Exit statuses pass through; a signal adds 128, as in a shell."""
    report = run(shell(text))
    assert (report.status, report.message) == (status, "")
    assert report.held is not None


def test_the_lock_is_held_exactly_while_the_command_runs(pipes):
    """The lock is held while the command runs, free when it has ended."""
    with meanwhile(pipes, lambda: get_lock("a").locked()) as found:
        assert run(shell(waiting_between(pipes))).status == 0
    assert found == [True]
    assert not get_lock("a").locked()


def test_the_command_gets_its_token(tmp_path):
    """It rises from run to run, for the command to hand on to what checks it."""
    for name in ("first", "second"):
        run(shell(f"echo $HOLDFAST_LOCK $HOLDFAST_FENCING_TOKEN > {tmp_path / name}", fenced=True))
    (one, first), (two, second) = (tmp_path.joinpath(n).read_text().split() for n in ("first", "second"))
    assert one == two == "a"
    assert 0 < int(first) < int(second)


@pytest.mark.parametrize(("options", "status"), [({}, 75), ({"on_conflict": 0}, 0)])
def test_without_the_lock_nothing_is_run(tmp_path, options, status):
    """Others have it: the exit status is the one that was asked for."""
    with simulate_contention("a"):
        report = run(shell(f"touch {tmp_path / 'ran'}", wait=0, **options))
    assert report.status == status
    assert "'a'" in report.message
    assert not list(tmp_path.iterdir())


def test_without_a_backend_nothing_is_run(tmp_path, backend_down):
    """69, with the backend's own words."""
    report = run(shell(f"touch {tmp_path / 'ran'}", backend=backend_down))
    assert report.status == 69
    assert "doesn't answer" in report.message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("program", "status"), [("/no/such/program", 127), ("/", 126)])
def test_a_command_that_cannot_be_started_frees_the_lock(program, status):
    """127 where there is none, 126 where it can't be run."""
    report = run(job(program))
    assert report.status == status
    assert program in report.message
    assert not get_lock("a").locked()


def break_it():
    """Take the lock away from anyone who has it."""
    (hold,) = holds_of("a")
    return take_from("a", owner=hold.owner)


def test_a_command_whose_lock_is_lost_is_stopped_with_all_it_started(monkeypatch, pipes, tmp_path):
    """SIGTERM, which this one ignores, and SIGKILL after the grace, for the whole group."""
    monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", 6.0)
    begin = f"trap '' TERM; sleep 1000 & echo $! > {tmp_path / 'child'}; "
    text = begin + waiting_between(pipes, "wait")
    with meanwhile(pipes, break_it) as broken:
        report = run(shell(text, grace=0.2))
    assert broken == [True]
    assert report.status == 70
    assert report.message.startswith("the lock 'a' was lost: the command was stopped")
    until(lambda: is_gone(int((tmp_path / "child").read_text())), PATIENCE)


def is_gone(pid):
    """Whether a process has ended; a zombie has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_command_that_hears_sigterm_may_tidy_up(monkeypatch, pipes, tmp_path):
    """Within the grace it ends by itself."""
    monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", 6.0)
    tidy = f"trap 'echo tidy > {tmp_path / 'tidied'}; exit 0' TERM; "
    text = tidy + waiting_between(pipes, "while :; do sleep 0.01; done")
    with meanwhile(pipes, break_it):
        report = run(shell(text, grace=3.0))
    assert report.status == 70
    assert (tmp_path / "tidied").read_text() == "tidy\n"


def test_a_ttl_ends_the_command_before_the_lease_ends():
    """SIGTERM comes so early that SIGKILL falls to the end of the lease."""
    report = run(job("sleep", "1000", ttl=20.0, grace=19.5))
    assert report.status == 70
    assert report.message.startswith("the lock 'a' was about to end: the command was stopped")


@pytest.mark.whole
def test_an_outage_stops_the_command_before_the_lease_ends(monkeypatch, own_redis, locks_on, pipes):
    """A lease that can't be renewed any more is as good as over."""
    monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", 4.0)
    locks_on(own_redis.url, socket_timeout=1.0)
    text = waiting_between(pipes, "sleep 1000")
    with meanwhile(pipes, own_redis.pause):
        report = run(shell(text, grace=0.2))
    own_redis.resume()
    assert report.status == 70
    assert "the command was stopped" in report.message


def test_a_loss_that_shows_only_at_the_end_is_reported(pipes):
    """The command ended before the loss was known: whether it ran alone is unknown, so it doesn't count."""
    with meanwhile(pipes, break_it):
        report = run(shell(waiting_between(pipes, "exit 0")))
    assert report.status == 70
    assert report.message.endswith("the command had ended with exit status 0")


# as a process of its own


@contextmanager
def started(*arguments, **options):
    """`manage.py locks run …`, in a process of its own."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with WarmProcess(["manage.py", "locks", "run", *arguments], **(pipe | options)) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_go_to_the_command(number):
    """It decides what they mean; its exit status is ours, and the lock is free."""
    text = f"trap 'exit 3' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.01; done"
    with started("a", "--", "sh", "-c", text) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(PATIENCE) == 3
    assert not get_lock("a").locked()


def test_what_is_ignored_stays_ignored():
    """Under nohup the command outlives its terminal, as it would by itself."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(shell("kill -HUP $PPID; kill -HUP $$; exit 5")).status == 5
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_ends_the_wait_for_the_lock():
    """The place in the queue is given up, and the command never runs."""
    with get_lock("a"), started("--wait", "600", "--json", "a", "--", "echo", "ran") as process:
        until(lambda: holds_of("a")[0].waiters == 1, PATIENCE)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 128 + signal.SIGTERM
        assert holds_of("a")[0].waiters == 0
    assert out == ""
    assert '"message": "stopped while waiting for the lock"' in err


class Finalized:
    """Gets a signal in its finalizer, where Python ignores what the signal's handler raises."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


class DropsOneWhoWaits(Observer):
    """Has an object finalized as soon as a lock is waited for."""

    def waiting(self, name, template, backend, change):
        """Drop the object that is made."""
        if change == 1:
            Finalized()


def test_a_signal_in_a_finalizer_ends_the_wait_for_the_lock():
    """It is sent again, until what its handler raises is heard."""
    held = elsewhere(get_lock("a").acquire)
    observer = DropsOneWhoWaits()
    observe(observer)
    try:
        report = run(job("echo", "ran", wait=PATIENCE))
    finally:
        stop_observing(observer)
        held.release()
    assert (report.status, report.message) == (128 + signal.SIGTERM, "stopped while waiting for the lock")


class SignalsAtTheGrant(Observer):
    """Gets a signal when the lock is granted, before the command is started."""

    def happened(self, event):
        """Send it."""
        if event.outcome == "acquired":
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_at_the_grant_ends_the_run_and_frees_the_lock():
    """Whether it ends the wait or goes to the command: nothing goes on, and the lock is free."""
    observer = SignalsAtTheGrant()
    observe(observer)
    try:
        report = run(job("sleep", "1000"))
    finally:
        stop_observing(observer)
    assert report.status == 128 + signal.SIGTERM
    assert not get_lock("a").locked()


def as_in_a_terminal():
    """Have the terminal as one's own, and Ctrl-C heard even where these tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_terminal_is_the_commands():
    """It reads from it, and Ctrl-C reaches it once."""
    ours, theirs = pty.openpty()
    text = "trap 'echo interrupted' INT; read line; echo got $line; read line; exit 5"
    with subprocess.Popen(
        [sys.executable, "manage.py", "locks", "run", "a", "--", "sh", "-c", text],
        cwd=ROOT, env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=as_in_a_terminal,
    ) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, b"hello\n")
        read_until(ours, b"got hello")
        os.write(ours, b"\x03")
        read_until(ours, b"interrupted")
        os.write(ours, b"\n")  # it may have been interrupted just before it began to read
        assert process.wait(PATIENCE) == 5
    os.close(ours)


def test_a_terminal_of_another_session_is_left_alone():
    """As under `su -c`: stdin is a terminal, but not ours to give; the lock is held to the end."""
    ours, theirs = pty.openpty()
    with started(
        "a", "--", "sh", "-c", "echo ready; read line; exit 5", stdin=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        assert process.stdout.readline() == "ready\n"
        assert get_lock("a").locked()
        os.write(ours, b"\n")
        assert process.wait(PATIENCE) == 5
    os.close(ours)


def test_what_fails_behind_the_start_leaves_no_command_without_its_lock(monkeypatch, tmp_path):
    """Nothing of it goes on when the lock is released."""
    started = []

    async def fail(running, lease, process):
        started.append(process)
        raise ZeroDivisionError

    monkeypatch.setattr(Job, "_watch_over", fail)
    with pytest.raises(ZeroDivisionError):
        run(shell("sleep 1000"))
    assert started[0].returncode == -signal.SIGKILL
    assert not get_lock("a").locked()


def test_a_failure_is_reported_below_a_parent_that_ignores_its_children():
    """An ignored SIGCHLD is inherited: the kernel keeps no exit status then, and Python makes it up as 0."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(shell("exit 3")).status == 3
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def read_until(terminal, text):
    """Read from a terminal until `text` has come."""
    read = b""
    while text not in read:
        read += os.read(terminal, 1024)
