"""The garbage collector skips what a worker has loaded."""

from __future__ import annotations

import os
import subprocess
import sys

LOADED = "import gc, config.wsgi; print(gc.get_freeze_count())"


def test_what_a_worker_has_loaded_is_frozen():
    """A full collection looks only at what requests have left, not at tens of thousands of loaded objects."""
    reported = subprocess.run(
        [sys.executable, "-c", LOADED],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(reported.stdout) > 50_000
