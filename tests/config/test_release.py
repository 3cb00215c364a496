"""The release command refuses what must not be published; the whole of it runs by `make release`."""

import os
import subprocess
import sys

import pytest

from config import release
from tests import ROOT


def test_a_folder_with_files_is_refused(tmp_path, capsys):
    """What lies there already would be published too."""
    (tmp_path / "old.whl").touch()
    assert release.main(["--out", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err


def test_a_version_without_its_changes_is_refused(tmp_path, monkeypatch):
    """Each version has a section in the change log."""
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.1.0\n")
    with pytest.raises(release.ReleaseError, match=r"no section for version 9\.9"):
        release.refuse_unnamed_version("9.9")


def test_a_build_that_differs_is_refused(tmp_path, monkeypatch):
    """The mutant: a file with the time of day in it."""
    (tmp_path / "a.whl").write_text("built at noon")
    monkeypatch.setattr(release, "build", lambda out: (out / "a.whl").write_text("built at one"))
    with pytest.raises(release.ReleaseError, match=r"a\.whl differs"):
        release.compare_with_second_build(tmp_path)


@pytest.mark.whole
def test_two_wheels_of_one_source_are_the_same_bytes(tmp_path):
    """With SOURCE_DATE_EPOCH nothing in the wheel depends on when and where it was built."""
    digests = set()
    for name in ("one", "two"):
        out = tmp_path / name
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        digests |= {release.digest(path) for path in out.iterdir()}
    assert len(digests) == 1
