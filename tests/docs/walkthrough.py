"""Follow a tutorial page as a reader does: make its files, type its commands, compare what is printed.

A block of code with a path as caption is a file: written, or appended where the caption says *at the end*. A
block `console` is a terminal: lines with `$ ` are typed, the others are what must be printed; `…` stands for
anything in a line, a line `…` for any number of lines. A console with a caption is a further terminal, whose
only command goes on while the reader follows the page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from redis import Redis

from config.embedded import redis_program
from tests import ROOT
from tests.support.processes import ServerProcess, free_ports, until

TUTORIAL = [ROOT / "docs" / "library" / "tutorial" / page for page in ("first-view.md", "task-and-test.md")]

BLOCK = re.compile(
    r"^```(?:\{code-block\} )?(?P<language>\w+)\n(?::caption: (?P<caption>[^\n]+)\n\n?)?(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
END = "--- typed ---"
AT_THE_END = " (at the end)"


@dataclass(frozen=True)
class Step:
    """One command of a page and what it must print."""

    command: str
    expected: str

    def shown(self, printed: str) -> bool:
        """Return whether the whole of `printed` is what the page shows."""
        return bool(re.fullmatch(pattern_of(self.expected), printed.strip("\n") + "\n"))

    def begun(self, printed: str) -> bool:
        """Return whether `printed` has come so far as the page shows."""
        return bool(re.match(pattern_of(self.expected).removesuffix(r"\n"), printed))


def pattern_of(expected: str) -> str:
    """Return a regular expression of an output as a page prints it."""
    lines = (
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*?") + r"\n"
        for line in expected.splitlines()
    )
    return "".join(lines) or r"\n"


def steps_of(console: str) -> list[Step]:
    """Return the commands of a console block, each with its output."""
    parts = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    return [Step(*part.partition("\n")[::2]) for part in parts]


class Reader:
    """Someone at a terminal in a folder.

    Args:
        folder: where the project is made.
        environment: variables of the terminal.
        replaced: texts of the pages, and their value here, such as the address of a server.
        pause: done in place of the command `sleep 1`: wait for what the reader waits for.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        replaced: Mapping[str, str],
        pause: Callable[[], object],
    ) -> None:
        self.folder, self.environment, self.replaced, self._pause = folder, environment, replaced, pause
        self.typed = 0

    def __enter__(self) -> Reader:
        self._open = ExitStack()
        self._shell = self._open.enter_context(self._terminal(["bash", "--norc", "--noprofile"]))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextmanager
    def _terminal(self, command: list[str], log: IO[bytes] | None = None) -> Iterator[subprocess.Popen[str]]:
        """A process with a group of its own, which ends with the block."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=log or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()

    def follow(self, page: str) -> None:
        """Do everything that a page says, in its order; AssertionError where it prints something else."""
        for block in BLOCK.finditer(page):
            if block["language"] == "python" and block["caption"]:
                self._write(block["caption"], block["body"])
            elif block["language"] == "console" and block["caption"]:
                self._leave_running(block["caption"], steps_of(block["body"])[0])
            elif block["language"] == "console":
                for step in steps_of(block["body"]):
                    self._type(step)

    def _write(self, caption: str, text: str) -> None:
        path = self.folder / caption.removesuffix(AT_THE_END)
        before = path.read_text() + "\n" if caption.endswith(AT_THE_END) else ""
        path.write_text(before + self._really(text))

    def _type(self, step: Step) -> None:
        self.typed += 1
        if step.command == "sleep 1":
            self._pause()
            return
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{self._really(step.command)}\nprintf '\\n{END}\\n'\n")
        self._shell.stdin.flush()
        printed = self._as_written("".join(iter(self._shell.stdout.readline, f"{END}\n")))
        assert step.shown(printed), f"$ {step.command}\n{printed}"

    def _leave_running(self, name: str, step: Step) -> None:
        self.typed += 1
        path = self.folder.parent / f"{name.replace(' ', '-')}.log"
        log = self._open.enter_context(path.open("wb"))
        command = ["bash", "-c", f". .venv/bin/activate; exec {self._really(step.command)}"]
        self._open.enter_context(self._terminal(command, log))
        until(lambda: step.begun(self._as_written(path.read_text())), f"{step.command}: {path}", within=60)

    def _really(self, text: str) -> str:
        for written, real in self.replaced.items():
            text = text.replace(written, real)
        return text

    def _as_written(self, text: str) -> str:
        for written, real in self.replaced.items():
            text = text.replace(real, written)
        return text


def environment_of(wheel: Path, constraints: Path) -> dict[str, str]:
    """Return the variables of a terminal whose pip finds this wheel, and the locked versions of the rest."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    own = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return own | kept | {
        "PATH": f"{sys.base_exec_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_CONSTRAINT": str(constraints),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "120",
    }  # fmt: skip


@contextmanager
def tutorial_reader(
    wheel: Path, room: Path, *, kind: type[Reader] = Reader, replaced: Mapping[str, str] | None = None
) -> Iterator[Reader]:
    """Yield a reader of the tutorial, in an empty folder of `room` and with a Redis of its own.

    Args:
        replaced: what is typed otherwise than the pages have it.
    """
    folder = room / "mysite"
    folder.mkdir()
    redis, web = free_ports(2)
    addresses = {"127.0.0.1:6379": f"127.0.0.1:{redis}", "127.0.0.1:8000": f"127.0.0.1:{web}"}
    server = ServerProcess(room / "redis", [str(redis_program()), "--port", str(redis), "--save", ""])
    client = Redis(port=redis)

    def pause() -> None:
        until(lambda: client.exists("lock:order:42"), "a request that holds the lock")

    try:
        environment = environment_of(wheel, ROOT / "requirements.lock")
        with kind(folder, environment, {**addresses, **(replaced or {})}, pause) as reader:
            yield reader
    finally:
        client.close()
        server.kill()
