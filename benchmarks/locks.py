"""`python -m benchmarks.locks`: this project's locks and the field's, side by side on one private Redis."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import asynchronous, calls, contended, crashes, renewal, uncontended
from benchmarks.awake import cores_awake
from benchmarks.circumstances import describe
from benchmarks.console import open_console
from benchmarks.peers import PEERS, Peer, missing
from benchmarks.plots import draw
from benchmarks.server import Server, private_redis
from benchmarks.tables import show
from benchmarks.targets import judge

PARTS = ("calls", "uncontended", "asyncio", "contended", "crashes", "renewal")


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        alone_rounds: rounds of the uncontended measurements.
        pairs: acquisitions and releases in one block of such a round.
        contended_rounds: rounds of the contended ones.
        contended_seconds: length of one contended run.
        crash_rounds: trials of each kind of death.
        renewal_seconds: how long the leases are held; a multiple of the ten seconds between two renewals.
    """

    alone_rounds: int
    pairs: int
    contended_rounds: int
    contended_seconds: float
    crash_rounds: int
    renewal_seconds: float


FULL = Effort(40, 200, 5, 2.0, 8, 40.0)
QUICK = Effort(15, 150, 2, 1.0, 2, 20.0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write what was asked for."""
    options = _parse(arguments)
    console = open_console()
    begun = time.monotonic()
    with private_redis() as server, console.status("starting") as status:
        results = measure(server, QUICK if options.quick else FULL, options.only, status.update)
    results["minutes"] = (time.monotonic() - begun) / 60
    targets = judge(results)
    results["targets"] = [{**asdict(target), "verdict": target.verdict} for target in targets]
    show(console, results, targets)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plots:
        draw(results, options.plots)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.locks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under five minutes")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="measure these parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures to FILE")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the plots into DIR")
    return parser.parse_args(arguments)


def measure(
    server: Server, effort: Effort, parts: Sequence[str], progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return the circumstances and the records of each part."""
    reasons = {peer.name: missing(peer, server.url) for peer in PEERS}
    present = [peer for peer in PEERS if reasons[peer.name] is None]
    results: dict[str, Any] = {
        "circumstances": describe(server, present),
        "parameters": asdict(effort),
        "missing": {name: reason for name, reason in reasons.items() if reason is not None},
    }
    for part in parts:
        results[part] = _measure_part(part, server, present, effort, progress)
    return results


def _measure_part(
    part: str, server: Server, present: list[Peer], effort: Effort, progress: Callable[[str], None]
) -> Any:
    if part == "calls":
        return calls.measure(server)
    if part == "uncontended":
        alone = [peer for peer in present if peer.alone]
        with cores_awake():
            return uncontended.measure(server, alone, effort.alone_rounds, effort.pairs, progress)
    if part == "asyncio":
        with cores_awake():
            return asynchronous.measure(server, effort.alone_rounds, effort.pairs, progress)
    if part == "contended":
        waiting = [peer for peer in present if peer.waits]
        return contended.measure(server, waiting, effort.contended_rounds, effort.contended_seconds, progress)
    if part == "crashes":
        mortal = [peer for peer in present if peer.crashes]
        return crashes.measure(server, mortal, effort.crash_rounds, progress)
    progress("10,000 leases held")
    return renewal.measure(server, effort.renewal_seconds)


if __name__ == "__main__":
    main()
