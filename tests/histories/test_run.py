"""A short run: a frozen holder's lost write and a wrong lock are found, and the fence holds."""

import json
import subprocess
import sys

import pytest

from histories import checker, hosts, run

REASON = hosts.obstacle() or (None if checker.go() else "no go on PATH or in /usr/local/go/bin")


def run_cell(tmp_path, *arguments):
    """Run Redis under `frozen-client` in a process that may enter a host for good, and return the cell."""
    file = tmp_path / "seen.json"
    command = ["-m", "histories.run", "--systems", "redis", "--nemeses", "frozen-client", "--seconds", "1"]
    done = subprocess.run(
        [sys.executable, *command, "--json", str(file), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seed ")
    (cell,) = json.loads(file.read_text())
    return cell


@pytest.mark.whole
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_frozen_holder_loses_a_write_without_a_fence_and_none_behind_it(tmp_path):
    """Two clients are frozen between read and write: one without a fence, one behind it."""
    cell = run_cell(tmp_path)
    assert (cell["verdicts"]["bare"], cell["verdicts"]["fenced"]) == ("Illegal", "Ok")
    assert cell["figures"]["lost"]["bare"] >= 1
    assert cell["figures"]["lost"]["fenced"] == 0


@pytest.mark.whole
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize(("mistake", "kind"), [("lock", "confirmed"), ("fence", "fenced")])
def test_a_mistake_is_found_out(tmp_path, mistake, kind):
    """Sections without their lock overlap, a stale holder without a fence writes, and the checker says so."""
    cell = run_cell(tmp_path, "--wrong", mistake)
    assert cell["verdicts"][kind] == "Illegal"


def test_without_root_the_run_says_so(monkeypatch):
    """The command refuses with the reason instead of a trace."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="need root"):
        run.main([])


def test_a_long_run_stays_within_its_time(monkeypatch):
    """Each cell has an even share of what is left; one that took longer makes the later ones shorter."""
    now, last = 100.0, run.AROUND + run.FAULT + run.REST
    monkeypatch.setattr("time.monotonic", lambda: now)
    plan = run.Plan(20, minutes=2, cells=3)
    assert plan.next() == 40 - last  # a fault that begins by then ends within the cell's share
    now += 60
    assert plan.next() == 30 - last
    now += 60
    assert 0 < plan.next() < 1, "the last cell has one fault all the same"
    assert run.Plan(20, minutes=None, cells=3).next() == 20


def test_a_cell_that_was_not_judged_is_not_called_possible():
    """The report names histories that the checker did not decide."""
    figures = {"operations": 9, "availability": 1.0, "next_holder": 0.1}
    line = run.Cell("redis", "calm", 1, 7.0, "", {"lock": "Unknown", "bare": "Ok"}, figures).line()
    assert "Unknown" in line
    assert "possible" not in line
