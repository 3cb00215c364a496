"""Everything of a release but the upload: `make release`, or `python -m config.release [--out dist]`.

Builds the source distribution and, from it, the wheel; builds both again and compares the bytes; has twine
check them; installs the wheel in an empty environment and imports it there; writes an SBOM (CycloneDX) of
what that environment holds, and SHA256SUMS. SOURCE_DATE_EPOCH is the last commit's time unless it is set.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from locking import __version__

ROOT: Final = Path(__file__).resolve().parent.parent
SBOM_EXTRAS: Final = "redis,celery"
"""The extras whose packages the SBOM lists besides the wheel's own."""


def main(arguments: list[str]) -> int:
    """Make a release; the exit status is 1 when something about it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args(arguments).out.resolve()
    try:
        release(out)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


class ReleaseError(Exception):
    """What was built must not be published."""


def release(out: Path) -> None:
    """Fill the folder `out`, which must be empty or missing."""
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty; remove what is in it, or name another folder with --out")
    os.environ.setdefault("SOURCE_DATE_EPOCH", commit_time())
    refuse_unnamed_version()
    build(out)
    compare_with_second_build(out)
    files = sorted(out.iterdir())
    run("-m", "twine", "check", "--strict", *map(str, files))
    write_sbom(next(path for path in files if path.suffix == ".whl"), out)
    write_sums(out)
    print(f"{out} is ready; publish with: python -m twine upload {out}/*.whl {out}/*.tar.gz")


def refuse_unnamed_version(version: str = __version__) -> None:
    """Refuse a version that the change log doesn't know."""
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        raise ReleaseError(
            f"CHANGELOG.md has no section for version {version}; add one, or correct the version"
        )


def commit_time() -> str:
    """Return the time of the last commit, so that two builds of one commit are the same bytes."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def build(out: Path) -> None:
    """Build the source distribution, and the wheel from it as an installer would."""
    run("-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))


def compare_with_second_build(out: Path) -> None:
    """Build again elsewhere; the same source must give the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        for path in out.iterdir():
            if digest(path) != digest(Path(folder, path.name)):
                raise ReleaseError(f"{path.name} differs from a second build of the same source")


def write_sbom(wheel: Path, out: Path) -> None:
    """Install the wheel alone, use it, and list what came along."""
    with tempfile.TemporaryDirectory() as folder:
        run("-m", "venv", folder)
        python = Path(folder, "bin", "python")
        run("-m", "pip", "install", "--quiet", f"{wheel}[{SBOM_EXTRAS}]", python=python)
        run("-c", "import locking, locking.testing", python=python)
        sbom = out / f"{wheel.name.removesuffix('.whl')}.cdx.json"
        options = ("--pyproject", "pyproject.toml", "--output-reproducible", "--output-file", str(sbom))
        run("-m", "cyclonedx_py", "environment", *options, str(python))


def write_sums(out: Path) -> None:
    """Write the digests of all files beside them."""
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines))


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*arguments: str, python: Path | str = sys.executable) -> None:
    """Run Python in the project's folder."""
    subprocess.run([str(python), *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
