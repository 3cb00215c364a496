"""The wheel as a publisher builds it, and an environment that has it and nothing of this project."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.once import made_once


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of `locking`, built once."""

    def build(out: Path) -> None:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
        command += ["--outdir", str(out), str(ROOT)]
        subprocess.run(command, check=True, capture_output=True)

    return Path(*made_once(tmp_path_factory, "dist", build).glob("*.whl"))


@pytest.fixture(scope="session")
def wheel_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its redis extra, nothing else."""
    return made_once(tmp_path_factory, "venv", lambda folder: install(folder, f"{wheel}[redis]"))


def install(environment: Path, *requirements: str) -> None:
    """Make an environment with these in the versions of the lock file; nothing is compiled yet."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install"]
    pip += ["--quiet", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "requirements.lock"), *requirements], check=True)
