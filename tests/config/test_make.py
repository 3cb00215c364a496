"""What the Makefile runs: Python is replaced by a script that writes down what it was asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.processes import until

PYTHON = """#!/bin/sh
echo "$@" >>"$ASKED"
case "$*" in
*relay_events*)
    trap 'echo relay ended >>"$ASKED"; exit' TERM
    while :; do sleep 0.05; done ;; # until its signal comes
*config.serve*)
    until grep -q relay_events "$ASKED"; do sleep 0.05; done ;; # both were begun
esac
"""


@pytest.fixture
def make(tmp_path: Path):
    """Run a target; return what Python was asked for, each time with its arguments in a line."""
    python, ready, asked = tmp_path / "python", tmp_path / "ready", tmp_path / "asked"
    python.write_text(PYTHON)
    python.chmod(0o755)
    ready.touch()

    def make(*arguments: str) -> list[str]:
        command = ["make", "--silent", f"RUN={python}", f"READY={ready}", *arguments]
        subprocess.run(
            command, cwd=ROOT, env={"ASKED": str(asked), "PATH": "/usr/bin:/bin"}, check=True, timeout=60
        )
        return asked.read_text().splitlines()

    return make


def test_serve_has_a_relay_of_events_that_ends_with_it(make, tmp_path):
    """The demo's products, then both; the relay goes when the server has ended."""
    asked = make("serve", "PORT=8080")
    assert asked[:2] == ["manage.py migrate --verbosity 0", "manage.py seed_demo"]
    assert set(asked[2:4]) == {"-m config.serve 8080", "manage.py relay_events --every 2"}
    said = tmp_path / "asked"
    until(lambda: said.read_text().splitlines()[4:] == ["relay ended"], "the relay ends with its server")


def test_the_documentation_has_the_static_lab(make):
    """It is written beside the pages of each language once both are built."""
    asked = make("docs")
    assert len([line for line in asked if line.startswith("-m sphinx")]) == 2
    assert asked[-2:] == [f"manage.py build_static_lab build/{pages}/lab" for pages in ("docs", "docs-zh")]


@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("static-lab", ["manage.py build_static_lab build/lab"]),
        (
            "recordings",
            ["manage.py migrate --verbosity 0", "manage.py record_races", "manage.py record_steps"],
        ),
    ],
)
def test_a_target_of_the_lab_runs_its_commands(make, target, commands):
    """In this order, and nothing else."""
    assert make(target) == commands
