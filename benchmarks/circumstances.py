"""Under which circumstances the figures were taken: without them a figure means nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers import Peer
from benchmarks.server import Server

ROOT = Path(__file__).resolve().parent.parent


def describe(server: Server, peers: Sequence[Peer]) -> dict[str, Any]:
    """Return machine, versions, commit, and what the locks' benchmark runs on."""
    return describe_machine() | {
        "redis_server": server.client.info("server")["redis_version"],
        "transport": "loopback TCP, no persistence",
        "packages": {peer.name: f"{peer.package} {peer.version()}" for peer in peers if peer.package},
    }


def describe_machine() -> dict[str, Any]:
    """Return machine, versions, commit and whether the checkout has changes that no commit has."""
    return {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg(),
        "python": platform.python_version(),
        "reply_parser": "hiredis" if find_spec("hiredis") else "pure Python",
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.check_output(["git", *arguments], cwd=ROOT, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.decode().strip()
