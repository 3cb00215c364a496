"""Has Porcupine judge operations: builds the Go checker, and gives it one JSON object per line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from histories.models import Operation

SOURCE: Final = Path(__file__).parent / "checker"


class History(NamedTuple):
    """Whose history it is, and by which model it is judged."""

    model: str
    key: str


def go() -> str | None:
    """Return Go's path, also where it is installed but not on PATH."""
    return shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/go/bin"]))


def build(folder: Path) -> Path:
    """Build the checker into `folder`; Porcupine comes from the module proxy, checked by go.sum."""
    program = folder / "checker"
    subprocess.run([go() or "go", "build", "-o", str(program), "."], cwd=SOURCE, check=True)
    return program


def judge(program: Path, histories: Iterable[tuple[History, Operation]]) -> dict[History, str]:
    """Return Ok, Illegal or Unknown for each history."""
    lines = (json.dumps({**history._asdict(), **asdict(operation)}) for history, operation in histories)
    done = subprocess.run([str(program)], input="\n".join(lines), capture_output=True, text=True, check=True)
    verdicts = map(json.loads, done.stdout.splitlines())
    return {History(verdict["model"], verdict["key"]): verdict["result"] for verdict in verdicts}
