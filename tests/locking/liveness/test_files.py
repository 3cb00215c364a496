"""Process liveness: whose file says what, and when a process is judged to be dead."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from locking import get_lock
from locking.liveness import files
from locking.liveness.files import Record, Registration, registration, seize
from locking.testing.contract.processes import child
from locking.utils.ownership import (
    PROCESS,
    is_guarded,
    new_guarded_owner,
    new_owner,
    process_of,
)
from tests.locking.support.liveness_fixtures import own_path, read

pytestmark = pytest.mark.usefixtures("runtime_dir", "memory_locks")


def own_record() -> Record:
    """Return what this process's file says."""
    return read(own_path())


def test_a_process_that_uses_a_lock_has_a_file_of_its_own(runtime_dir):
    """The first lock registers the process, in a directory that is its user's alone."""
    assert registration.path is None
    get_lock("a").acquire().release()
    record = own_record()
    assert own_path().parent == runtime_dir
    assert (record.client, record.pid, record.aliases) == (PROCESS.client_id, os.getpid(), ["default"])
    assert record.is_running()
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700


def test_further_locks_write_nothing(monkeypatch):
    """Only the first use of a backend touches the file."""
    get_lock("a").acquire().release()
    written = []
    monkeypatch.setattr(Registration, "_write", lambda *text: written.append(text))
    for _ in range(3):
        get_lock("a").acquire().release()
    assert written == []


def test_the_living_are_not_seized():
    """While a process lives no other cleans up behind it."""
    get_lock("a").acquire().release()
    assert seize(own_path()) is None


def test_a_killed_process_is_seized_once(runtime_dir):
    """One of several that notice deletes the file, and cleans up."""

    def work(pipe):
        registration.enter("default")
        pipe.send(str(own_path()))
        pipe.recv()

    with child(work) as other:
        path = Path(other.report())
        assert seize(path) is None
        other.kill()
        dead = seize(path)
        assert dead is not None
        assert dead.pid == other.process.pid
        assert seize(path) is None


def test_a_forked_child_does_not_keep_its_parent_alive():
    """A child that outlives its parent has no file until it locks itself."""

    def parent(pipe):
        registration.enter("default")
        path = own_path()
        pid = os.fork()
        if not pid:
            pipe.send((str(path), os.getpid(), registration.path))
            time.sleep(60)
        os.waitpid(pid, 0)

    with child(parent) as other:
        path, grandchild, inherited = other.report()
        try:
            assert inherited is None
            assert seize(Path(path)) is None
            other.kill()
            assert seize(Path(path)) is not None
        finally:
            os.kill(grandchild, 9)


def test_a_pid_that_another_has_by_now_is_no_sign_of_life():
    """A process is named by its pid and its start: another with the same pid isn't it."""
    get_lock("a").acquire().release()
    mine = own_record()
    assert mine.is_running()
    mine.start = "1"
    assert not mine.is_running()


@pytest.mark.parametrize(("answer", "running"), [(PermissionError, True), (ProcessLookupError, False)])
def test_a_process_that_proc_hides_is_not_taken_for_dead(monkeypatch, answer, running):
    """Where /proc shows users their own processes only, the kernel tells whether there is one of that pid."""

    def kill(*_):
        raise answer

    monkeypatch.setattr(Path, "read_text", lambda *_, **__: Path("/proc/nowhere").stat())
    monkeypatch.setattr(os, "kill", kill)
    assert Record("c", "h", 1 << 22, "1", "n", [], 0.0).is_running() is running


def test_a_zombie_is_dead():
    """Its parent hasn't asked how it ended, and may never: it does nothing any more."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = Record("c", "h", child.pid, files.start_of(child.pid), "n", [], 0.0)
    assert record.is_running()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not record.is_running()
    child.communicate()
    assert not record.is_running()


def put(runtime_dir, **changes):
    """Write the file of a process that is dead, and return its path."""
    fields = {"client": "c", "place": files.place(), "pid": 1 << 22, "start": "1", "name": "n"}
    fields |= {"aliases": [], "kept": 0.0}
    path = runtime_dir / "c"
    path.write_text(json.dumps(fields | changes))
    return path


def test_a_file_that_goes_while_others_are_looked_at_hides_none_of_them(runtime_dir, monkeypatch):
    """Another process may delete a left-over file between its listing and the look at its age."""
    gone, near = runtime_dir / "gone", runtime_dir / files.file_name("c")
    for path in (gone, near):
        path.write_text("{}")
    listed = sorted(os.scandir(runtime_dir), key=lambda file: file.name != "gone")
    gone.unlink()
    monkeypatch.setattr(os, "scandir", lambda folder: listed)
    assert list(files.peers(runtime_dir)) == [near]


def test_a_dead_process_of_this_host_is_seized(runtime_dir):
    """The counter-example to those that follow."""
    assert seize(put(runtime_dir)) is not None


@pytest.mark.parametrize(
    "changes",
    [{"place": "another-boot/1"}, {"place": files.place() + "9"}],
    ids=["host", "locks"],
)
def test_no_process_is_judged_elsewhere(runtime_dir, changes):
    """A file of another machine or PID namespace, or of other locks, says nothing about its process here."""
    assert seize(put(runtime_dir, **changes)) is None


@pytest.mark.parametrize(
    "text", ["", '{"client": "c"', '{"client": "c"}'], ids=["empty", "cut off", "partly"]
)
def test_what_cannot_be_read_is_not_gone_by(runtime_dir, text):
    """A process that was killed while it wrote its file leaves its locks to their leases."""
    path = runtime_dir / "c"
    path.write_text(text)
    assert seize(path) is None


def test_files_from_before_a_reboot_do_not_pile_up(runtime_dir):
    """One that can't be judged and is untouched for a day is deleted."""
    path = put(runtime_dir, place="an-earlier-boot/1")
    assert seize(path) is None
    assert path.exists()
    os.utime(path, (0, 0))
    assert seize(path) is None
    assert not path.exists()


def test_another_users_file_is_left_alone(runtime_dir, monkeypatch):
    """What may not be opened isn't judged, and nothing fails."""
    path = put(runtime_dir)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert seize(path) is None


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
    assert own_record().aliases == ["default"]
    assert seize(own_path()) is None


def test_a_full_disk_leaves_no_file_that_is_out_of_date(monkeypatch):
    """What can't be written down any more withdraws the file: what it said before may be untrue."""
    registration.enter("default")
    path = own_path()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.rename", full)
    registration.keep(new_guarded_owner(), time.time() + 60)
    assert not path.exists()
    assert registration.problem is not None
    assert "No space left" in registration.problem


def test_it_can_be_turned_off(settings):
    """LOCKING_RUNTIME_DIR=None: no file, no word."""
    settings.LOCKING_RUNTIME_DIR = None
    registration.enter("default")
    assert (registration.path, registration.problem) == (None, None)


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
    assert own_record().kept == 0
    lease = get_lock("a", ttl=60, guarded=True).acquire()
    assert own_record().leaves(lease.owner)
    lease.leave_to_expire()
    record = own_record()
    assert not record.leaves(lease.owner)
    assert record.kept >= time.time() + 50
    record.kept = time.time() - 1
    assert record.leaves(lease.owner)


def test_many_kept_leases_are_one_file(monkeypatch):
    """One that is kept a moment longer than the last needs no other file."""
    registration.enter("default")
    moment, written = time.time() + 60, []
    registration.keep(new_guarded_owner(), moment)
    monkeypatch.setattr(Registration, "_write", lambda *_: written.append(1))
    for number in range(50):
        registration.keep(new_guarded_owner(), moment + number)
    assert written == []
    registration.keep(new_guarded_owner(), moment + 2 * files.KEPT_LONGER)
    assert written == [1]


def test_an_end_in_order_deletes_the_file_unless_something_is_left():
    """Others may release what is left, as if the process had been killed."""
    registration.enter("default")
    path, owner = own_path(), new_guarded_owner()
    registration.leave(stays=True)
    assert read(path).leaves(owner)
    registration.leave()
    assert not path.exists()


def test_owners_tell_what_becomes_of_them():
    """Of one process, with a digit each."""
    plain, guarded = new_owner(), new_guarded_owner()
    assert {process_of(owner) for owner in (plain, guarded)} == {PROCESS.client_id}
    assert [is_guarded(owner) for owner in (plain, guarded)] == [False, True]


def test_a_file_on_a_system_that_takes_nothing_is_not_gone_by(runtime_dir, monkeypatch):
    """Its process could neither bring it up to date nor delete it."""
    path = put(runtime_dir)

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    assert seize(path) is None


def test_deployments_with_other_cache_prefixes_are_apart(settings):
    """A lock on a shared cache has that cache's prefix: who has another can't release it."""
    settings.LOCKING = {"default": {"CACHE": "default"}}
    seen = set()
    for changes in ({}, {"KEY_PREFIX": "a"}, {"VERSION": 2}):
        settings.CACHES = {"default": {"BACKEND": "x", "LOCATION": "redis://x", **changes}}
        seen.add(files.place())
    assert len(seen) == 3


def test_a_registration_is_not_made_twice():
    """Another backend replaces the file, and leaves nothing beside it."""
    one = Registration()
    one.enter("default")
    one.enter("other")
    assert one.path is not None
    assert [path.name for path in one.path.parent.iterdir()] == [files.file_name(PROCESS.client_id)]
    assert read(one.path).aliases == ["default", "other"]
    one.leave()
    one.reset()
