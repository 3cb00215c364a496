"""Process liveness: whose file says what, and when a process is judged to be dead."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured

from locking import get_lock
from locking.liveness import files, release
from locking.liveness.files import Record, peers, registration
from locking.testing.contract.processes import child
from locking.utils.ownership import (
    PROCESS,
    is_guarded,
    new_guarded_owner,
    new_owner,
    process_of,
)
from tests.locking.support.liveness_fixtures import NO_PID, dead_in, own_path, put

pytestmark = pytest.mark.usefixtures("runtime_dir", "memory_locks")


def own_record() -> Record:
    """Return what this process's file says to others."""
    with mock.patch.object(PROCESS, "client_id", "another"):
        return peers(own_path().parent)[own_path()]


def test_a_process_that_uses_a_lock_has_a_file_of_its_own(runtime_dir):
    """The first lock registers the process, in a directory that is its user's alone."""
    assert not registration.aliases
    get_lock("a").acquire().release()
    record = own_record()
    assert registration.folder == own_path().parent == runtime_dir
    assert (record.client, record.pid, record.alias) == (PROCESS.client_id, os.getpid(), "default")
    assert record.is_running()
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700


def test_further_locks_write_nothing(monkeypatch):
    """Only the first use of a backend makes a file."""
    get_lock("a").acquire().release()
    written = []
    monkeypatch.setattr(registration, "refresh", lambda: written.append(1))
    for _ in range(3):
        get_lock("a").acquire().release()
    assert written == []


def test_a_killed_process_is_dead(runtime_dir):
    """While a process lives no other cleans up behind it."""

    def work(pipe):
        registration.enter("default")
        pipe.send(str(own_path()))
        pipe.recv()

    with child(work) as other:
        path = Path(other.report())
        assert dead_in(runtime_dir) == {}
        other.kill()
        assert [(file, dead.pid) for file, dead in dead_in(runtime_dir).items()] == [
            (path, other.process.pid)
        ]


def test_the_own_file_is_no_peers(runtime_dir):
    """A process never judges itself."""
    put(runtime_dir, PROCESS.client_id)
    assert peers(runtime_dir) == {}


def test_a_forked_child_does_not_keep_its_parent_alive(runtime_dir):
    """A child that outlives its parent has no file until it locks itself."""

    def parent(pipe):
        registration.enter("default")
        path = own_path()
        pid = os.fork()
        if not pid:
            pipe.send((str(path), os.getpid(), registration.folder))
            time.sleep(60)  # lives until it is killed
        os.waitpid(pid, 0)

    with child(parent) as other:
        path, grandchild, inherited = other.report()
        try:
            assert inherited is None
            assert dead_in(runtime_dir) == {}
            other.kill()
            assert list(dead_in(runtime_dir)) == [Path(path)]
        finally:
            os.kill(grandchild, 9)


def test_a_pid_that_another_has_by_now_is_no_sign_of_life():
    """A process is named by its pid and its start: another with the same pid isn't it."""
    get_lock("a").acquire().release()
    mine = own_record()
    assert mine.is_running()
    assert not mine._replace(start="1").is_running()


@pytest.mark.parametrize(("answer", "running"), [(PermissionError, True), (ProcessLookupError, False)])
def test_a_process_that_proc_hides_is_not_taken_for_dead(monkeypatch, answer, running):
    """Where /proc shows users their own processes only, the kernel tells whether there is one of that pid."""

    def kill(*_):
        raise answer

    monkeypatch.setattr(Path, "read_text", lambda *_, **__: Path("/proc/nowhere").stat())
    monkeypatch.setattr(os, "kill", kill)
    assert Record("c", NO_PID, "1", "default", 0.0).is_running() is running


def test_a_zombie_is_dead():
    """Its parent hasn't asked how it ended, and may never: it does nothing any more."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = Record("c", child.pid, str(files.start_of(child.pid)), "default", 0.0)
    assert record.is_running()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not record.is_running()
    child.communicate()
    assert not record.is_running()


def test_a_file_that_goes_while_others_are_looked_at_hides_none_of_them(runtime_dir, monkeypatch):
    """Another process may delete a file between its listing and the look at its time."""
    gone, there = put(runtime_dir, "b"), put(runtime_dir, "c")
    listed = sorted(os.scandir(runtime_dir), key=lambda file: file.name != gone.name)
    gone.unlink()
    monkeypatch.setattr(os, "scandir", lambda folder: listed)
    assert list(dead_in(runtime_dir)) == [there]


def test_no_process_is_judged_elsewhere(runtime_dir, settings):
    """A file of another machine or PID namespace, or of other locks, says nothing about its process here."""
    put(runtime_dir, "c", mark="0123456789abcdef")
    assert peers(runtime_dir) == {}
    put(runtime_dir, "c")
    assert len(peers(runtime_dir)) == 1, "the counter-example"
    settings.LOCKING = {"default": {**settings.LOCKING["default"], "TTL": 7}}
    assert peers(runtime_dir) == {}


@pytest.mark.parametrize("name", ["{mark}.", "{mark}.x.1.c.default", "{mark}.1.1", "c"])
def test_what_is_no_processs_file_is_passed_over(runtime_dir, name):
    """A name that can't be understood judges no process, and keeps none from being judged."""
    (runtime_dir / name.format(mark=files.mark())).touch()
    there = put(runtime_dir, "c")
    assert list(dead_in(runtime_dir)) == [there]


def test_an_alias_of_any_spelling_is_read_again(runtime_dir):
    """Slashes and dots are no end of a name."""
    registration.enter("a/b.c é")
    (path,) = registration._files
    with mock.patch.object(PROCESS, "client_id", "another"):
        assert peers(runtime_dir)[path].alias == "a/b.c é"


# --- where there is no directory ----------------------------------------------------------------------


def others_may_write(folder, settings):
    """Let every user put files there."""
    folder.chmod(0o777)


def is_a_file(folder, settings):
    """Put a file in its place."""
    folder.rmdir()
    folder.write_text("")


def cannot_be_made(folder, settings):
    """Name a file system that takes nothing."""
    settings.LOCKING_RUNTIME_DIR = "/proc/nowhere/holdfast"


@pytest.mark.parametrize("spoil", [others_may_write, is_a_file, cannot_be_made])
def test_without_a_directory_the_leases_decide_and_it_is_said_once(runtime_dir, settings, caplog, spoil):
    """Locks work as ever, and the log says once that those of a killed process end with their leases."""
    spoil(runtime_dir, settings)
    with caplog.at_level(logging.WARNING, "locking"):
        for alias in ("default", "default/read"):
            registration.enter(alias)
        registration.refresh()
        with get_lock("a"):
            pass
    mine = [record for record in caplog.records if record.thread == threading.get_ident()]
    reported = [record.getMessage() for record in mine]
    assert len(reported) == 1
    assert "locks of killed processes end with their leases" in reported[0]
    assert registration.problem == reported[0]


def test_the_default_directory_has_to_be_its_users_own(tmp_path, monkeypatch, settings):
    """One that another user has made before us is refused, whatever its mode."""
    del settings.LOCKING_RUNTIME_DIR
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    made = tmp_path / f"holdfast-{os.geteuid()}"
    made.mkdir(mode=0o755)
    assert files.directory() == made
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    made.rename(tmp_path / f"holdfast-{owner + 1}")
    with pytest.raises(PermissionError, match=f"belongs to the user {owner}: "):
        files.directory()


def test_a_directory_comes_back(runtime_dir, settings):
    """A process that found none looks again once a minute."""
    settings.LOCKING_RUNTIME_DIR = "/proc/nowhere"
    registration.enter("default")
    assert registration.problem is not None
    settings.LOCKING_RUNTIME_DIR = runtime_dir
    registration.refresh()
    assert own_record().pid == os.getpid()
    assert not registration.problem


def test_a_file_that_was_deleted_is_made_again():
    """A sweep of /tmp costs a process its file for a minute."""
    registration.enter("default")
    own_path().unlink()
    registration.refresh()
    assert own_record().alias == "default"


def test_a_file_system_that_takes_nothing_has_no_file_that_is_out_of_date(monkeypatch):
    """What can't be written down any more withdraws the file: what it said before may be untrue."""
    registration.enter("default")
    path = own_path()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.utime", full)
    registration.keep(new_guarded_owner(), time.time() + 60)
    assert not path.exists()
    assert registration.problem is not None
    assert "No space left" in registration.problem


def test_it_can_be_turned_off(settings):
    """LOCKING_RUNTIME_DIR=None: no file, no word."""
    settings.LOCKING_RUNTIME_DIR = None
    registration.enter("default")
    assert (registration.folder, registration.problem) == (None, None)


@pytest.mark.parametrize("value", ["relative/path", 7])
def test_a_setting_that_is_no_path_is_refused(settings, value):
    """The message names the setting, its value and what to write instead."""
    settings.LOCKING_RUNTIME_DIR = value
    with pytest.raises(ImproperlyConfigured, match="LOCKING_RUNTIME_DIR must be an absolute path"):
        files.base_directory()


# --- what the file says --------------------------------------------------------------------------------


def test_a_kept_lease_keeps_all_of_its_process(monkeypatch):
    """Until it ends; a lock that isn't guarded is left alone anyway, and changes nothing."""
    get_lock("plain", ttl=60).acquire().leave_to_expire()
    assert own_record().kept <= time.time()
    lease = get_lock("a", ttl=60, guarded=True).acquire()
    assert own_record().leaves(lease.owner)
    lease.leave_to_expire()
    record = own_record()
    assert not record.leaves(lease.owner)
    assert record.kept >= time.time() + 50
    assert record._replace(kept=time.time() - 1).leaves(lease.owner)
    registration.refresh()
    assert not own_record().leaves(lease.owner), "nor once a minute"


def test_an_end_in_order_deletes_the_file_unless_a_guarded_lock_is_left(monkeypatch):
    """Others may release what is left, as if the process had been killed."""
    left = [get_lock("a").acquire(), get_lock("b", guarded=True).acquire()]
    monkeypatch.setattr(release, "live_leases", lambda: left)
    release.leave()
    assert own_path().exists()
    left.pop().release()
    release.leave()
    assert registration._files == set()
    left.pop().release()


def test_owners_tell_what_becomes_of_them():
    """Of one process, with a digit each."""
    plain, guarded = new_owner(), new_guarded_owner()
    assert {process_of(owner) for owner in (plain, guarded)} == {PROCESS.client_id}
    assert [is_guarded(owner) for owner in (plain, guarded)] == [False, True]


def test_deployments_with_other_cache_prefixes_are_apart(settings):
    """A lock on a shared cache has that cache's prefix: who has another can't release it."""
    settings.LOCKING = {"default": {"CACHE": "default"}}
    seen = set()
    for changes in ({}, {"KEY_PREFIX": "a"}, {"VERSION": 2}):
        settings.CACHES = {"default": {"BACKEND": "x", "LOCATION": "redis://x", **changes}}
        seen.add(files.mark())
    assert len(seen) == 3


def test_each_backend_has_a_file(runtime_dir):
    """Another backend adds one, and what is kept counts for both."""
    registration.enter("default")
    registration.keep(new_guarded_owner(), time.time() + 60)
    registration.enter("other")
    assert {own_path(), own_path("other")} == set(runtime_dir.iterdir())
    assert own_path().stat().st_mtime == own_path("other").stat().st_mtime > time.time()
