"""Python processes in which Django is set up already: forked from one that waits, instead of started.

For tests of what a process does, not of how it starts. The settings are the tests' own, read once. The
process ends as any interpreter does: `atexit`, threads and finalizers included.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from select import POLLIN, poll, select
from typing import Any, Self

from django.conf import settings

from tests import ROOT

LONGEST = 200_000  # bytes of a request
MOST_FDS = 64


class WarmProcess:
    """Like `subprocess.Popen` of `python …` with `text=True`, as far as tests use it.

    Args:
        arguments: `-c code …`, `-m module …` or `manage.py command …`.
        env: variables of the process; None for this one's. Settings don't see them.
        stdin, stdout, stderr: `subprocess.PIPE`, `DEVNULL`, a descriptor, or None for this process's.
        start_new_session: lead a session of its own.
        pass_fds: descriptors for the process; their numbers there become its last arguments.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.returncode: int | None = None
        theirs: list[int] = []
        opened: list[int] = []
        for number, wanted in enumerate((stdin, stdout, stderr)):
            ours = None
            if wanted == subprocess.PIPE:
                reads, writes = os.pipe()
                fd, ours = (reads, os.fdopen(writes, "w")) if number == 0 else (writes, os.fdopen(reads))
                opened.append(fd)
            elif wanted == subprocess.DEVNULL:
                fd = os.open(os.devnull, os.O_RDWR)
                opened.append(fd)
            else:
                fd = number if wanted is None else wanted
            theirs.append(fd)
            setattr(self, ("stdin", "stdout", "stderr")[number], ours)
        self._messages, tells = os.pipe()
        request = [list(arguments), dict(os.environ if env is None else env), start_new_session]
        server = _server(os.environ.get("HOLDFAST_TEST_DATABASE", ""))
        socket.send_fds(server, [json.dumps(request).encode()], [*theirs, tells, *pass_fds])
        for fd in (*opened, tells):
            os.close(fd)
        self.pid = int(os.read(self._messages, 20))

    stdin: Any
    stdout: Any
    stderr: Any

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, as `subprocess` numbers it."""
        if self.returncode is None:
            if not select([self._messages], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(os.read(self._messages, 20) or -signal.SIGKILL)
            os.close(self._messages)
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Write `input`, read to the end, close the streams, and wait for the exit."""
        read = ["", ""]

        def drain(number: int, stream: Any) -> None:
            with stream:
                read[number] = stream.read()

        streams = [each for each in enumerate((self.stdout, self.stderr)) if each[1] and not each[1].closed]
        threads = [threading.Thread(target=drain, args=each) for each in streams]
        for thread in threads:
            thread.start()
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(input or "")
                self.stdin.close()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return read[0], read[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


@cache
def _server(database: str) -> socket.socket:
    """Return the connection to the process that forks; it ends with this one. One for each test database."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        ).returncode = 0  # never waited for: it leaves when its connection is closed
    return ours


# --- the process that forks -------------------------------------------------------------------------------


def forked(server: socket.socket) -> list[str]:
    """Serve requests; return in each forked process, with the arguments that it is to run."""
    while True:
        message, fds, *_ = socket.recv_fds(server, LONGEST, MOST_FDS)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            return _begun(json.loads(message), fds, server)
        for fd in fds:
            os.close(fd)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _begun(request: list[Any], fds: list[int], server: socket.socket) -> list[str]:
    """Fork once more and tell of that process: who it is, and how it ended. Return in it."""
    server.close()
    *streams, tells = fds[:4]
    passed = fds[4:]
    if pid := os.fork():
        for fd in (*streams, *passed):
            os.close(fd)
        os.write(tells, f"{pid:<20}".encode())
        _end_with_the_test(pid, tells)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError):
            os.write(tells, f"{status:<20}".encode())
        os._exit(0)
    os.close(tells)
    arguments, environment, new_session = request
    if new_session:
        os.setsid()
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    return [*arguments, *map(str, passed)]


def _end_with_the_test(pid: int, tells: int) -> None:
    """Wait for the end of the process; end it where the test that would read of it was killed."""
    events = poll()
    ended = os.pidfd_open(pid)
    events.register(ended, POLLIN)
    events.register(tells, 0)  # an error is always reported
    if ended not in dict(events.poll()):
        os.kill(pid, signal.SIGKILL)


def run(arguments: list[str]) -> None:
    """Do what `python` does with these arguments."""
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 a test's own
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__")
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line(arguments)


if __name__ == "__main__":
    import django

    django.setup()
    gc.freeze()  # a forked process would copy what its garbage collector walks through
    run(forked(socket.socket(fileno=int(sys.argv[1]))))
