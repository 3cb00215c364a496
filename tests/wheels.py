"""The wheel as a publisher builds it, and an environment that has it and nothing of this project."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of `locking`, built once."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return Path(*out.glob("*.whl"))


@pytest.fixture(scope="session")
def wheel_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its redis extra, nothing else; to copy, not to change."""
    folder = tmp_path_factory.mktemp("wheel") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    install(folder, f"{wheel}[redis]")
    return folder


def install(environment: Path, *requirements: str) -> None:
    """Install these in the versions of the lock file; only what is imported will be compiled."""
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install"]
    pip += ["--quiet", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "requirements.lock"), *requirements], check=True)
