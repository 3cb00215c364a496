"""A Java client, Redisson or another, in a process of its own, led line by line."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

HERE = Path(__file__).parent
CACHE = ROOT / ".pytest_cache" / "d" / "classpaths"

FETCHING = 600
"""Seconds of a first test: Maven may have to fetch the library, and javac to compile."""

VERSIONS = ("3.45.1", "3.52.0", "4.7.0")


def missing() -> str | None:
    """Return why no Java can be run here, or None."""
    absent = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    return f"no {' and no '.join(absent)} on PATH to run Redisson with" if absent else None


@cache
def classpath(version: str, home: Path = HERE) -> str:
    """Return where the library is, with what it needs: as Maven said last, else Maven fetches it."""
    said = CACHE / f"{home.name}-{version}"
    if said.exists() and all(map(os.path.exists, said.read_text().split(os.pathsep))):
        return said.read_text()
    CACHE.mkdir(parents=True, exist_ok=True)
    said.write_text(_fetched(version, home))
    return said.read_text()


def _fetched(version: str, home: Path) -> str:
    """Have Maven fetch the library and what it needs, and return where it is; skip if that can't be."""
    with tempfile.NamedTemporaryFile(mode="r") as found:
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={found.name}"]
        command = ["mvn", "-q", "-B", "-f", str(home / "pom.xml"), f"-Dlibrary.version={version}", *goal]
        for mode in ("-o", "-U"):  # from what is there already, else from the network
            done = subprocess.run([*command, mode], capture_output=True, text=True, timeout=300, check=False)
            if done.returncode == 0:
                return found.read()
    pytest.skip(f"{home.name} {version} can't be fetched: {(done.stdout + done.stderr)[-300:]}")


@cache
def compiled(version: str, home: Path = HERE) -> str:
    """Return where the harness's classes are; compiled again when its source has changed since."""
    classes, source = CACHE / f"{home.name}-{version}-classes", home / "Harness.java"
    made = classes / "Harness.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        command = ["javac", "-d", str(classes), "-cp", classpath(version, home), str(source)]
        subprocess.run(command, check=True, capture_output=True)
    return str(classes)


class Java:
    """The client; `do` answers when it has answered, `begin` at once."""

    def __init__(self, version: str, urls: Sequence[str], log: Path, home: Path = HERE) -> None:
        self._ids = itertools.count()
        self._answers: dict[str, Future[str]] = {"ready": Future()}
        classes = os.pathsep.join([compiled(version, home), classpath(version, home)])
        command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes, "Harness", *urls]
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        self.id = self._answers["ready"].result(60)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, _, answer = line.strip().partition(" ")
            if number in self._answers:
                self._answers[number].set_result(answer)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(EOFError(f"Java has ended, see {self._log.name}"))

    def begin(
        self, thread: str, verb: str, name: str, milliseconds: int = 60_000, *, kind: str = "lock"
    ) -> Future[str]:
        """Tell one of the client's threads what to do."""
        assert self._process.stdin is not None
        number = f"n{next(self._ids)}"
        self._answers[number] = Future()
        self._process.stdin.write(f"{number} {thread} {verb} {kind} {name} {milliseconds}\n")
        self._process.stdin.flush()
        return self._answers[number]

    def do(
        self, verb: str, name: str, milliseconds: int = 60_000, *, kind: str = "lock", thread: str = "main"
    ) -> str:
        """Have it done and return the answer."""
        return self.begin(thread, verb, name, milliseconds, kind=kind).result(20)

    def kill(self) -> None:
        """End the process at once, with whatever it holds."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            stream.close()
