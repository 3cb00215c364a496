"""Locust, headless: users who wait for their answers, as a second, differently built check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.load.shop import Shop

USERS = 10
LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def command(shop: Shop, *options: str) -> list[str]:
    """Return the command that runs locust on the shop."""
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", str(shop.address), *options]


def environment(skus: Sequence[str], journal: Path | None = None) -> dict[str, str]:
    """Return what the locustfile wants to know."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    named = {"LOAD_JOURNAL": str(journal)} if journal else {}
    return os.environ | {"LOAD_SKUS": ",".join(skus), "PYTHONPATH": path} | named


def run(shop: Shop, skus: Sequence[str], folder: Path, seconds: float) -> dict[str, Any] | None:
    """Let locust's users buy for a while; return its figures of the checkout, or None for no seconds."""
    if not seconds:
        return None
    limits = ["--headless", "--users", str(USERS), "--spawn-rate", str(USERS), "--run-time", f"{seconds:g}s"]
    done = subprocess.run(
        command(
            shop,
            *limits,
            "--stop-timeout",
            "25",
            "--json",
            "--loglevel",
            "ERROR",
            "--exit-code-on-error",
            "0",
        ),
        cwd=folder,
        env=environment(skus, folder / "locust.jsonl"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"locust failed: {done.stderr.strip()[-500:]}")
    return _figures(json.loads(done.stdout))


def _figures(stats: list[dict[str, Any]]) -> dict[str, Any]:
    checkout = next((entry for entry in stats if entry["name"] == "/checkout/"), {})
    return {
        "requests": checkout.get("num_requests", 0),
        "failures": checkout.get("num_failures", 0),
        "slowest_ms": round(checkout.get("max_response_time") or 0),
    }
