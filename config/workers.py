"""What gunicorn is told of its workers: `--config python:config.workers`."""

import os
from typing import Any


def child_exit(server: Any, worker: Any) -> None:
    """Take what an ended worker held and waited for out of the figures that all share; its counters stay."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
