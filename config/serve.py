"""`make serve`: the shop on this machine only, with its addresses printed first.

python -m config.serve [PORT]
"""

import os
import socket
import sys
import tempfile
from pathlib import Path

import django
from django.conf import settings
from django.contrib.staticfiles.management.commands import collectstatic
from django.contrib.staticfiles.storage import ManifestFilesMixin
from django.core.management import call_command
from django.utils.module_loading import import_string

from config.server import HOST

MANIFEST = ManifestFilesMixin.manifest_name
SERVED = {"CONN_MAX_AGE": "600", "SOLD_OUT_MEMORY": "0.25", "WORKER_CPU_AFFINITY": "true"}
"""Settings for processes that serve for long; the environment may name others."""

THREADS = 16
WORKERS = 2


def port_of(text: str) -> int:
    """Return the port in `text`.

    Raises:
        ValueError: it names none; the message is for the reader.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise ValueError(
            f"{text!r} is not a port; give a number from 1 to 65535, as in make serve PORT=8080."
        )
    return int(text)


def demand_free(port: int) -> None:
    """Refuse a port that can't be bound, before anything is started.

    Raises:
        ValueError: with the reason and the way out.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ValueError(
                f"port {port} can't be bound ({error.strerror}); end what has it or choose another, "
                f"as in make serve PORT={port + 1 if 1024 <= port < 65535 else 8080}."
            ) from None


def greeting(port: int, *, debug: bool = True) -> str:
    """Return the pages to open and, under DEBUG, the demo's login."""
    login = "   (user admin, password admin)" if debug else ""
    return (
        f"Shop    http://{HOST}:{port}/\n"
        f"Lab     http://{HOST}:{port}/lab/\n"
        f"Admin   http://{HOST}:{port}/admin/{login}\n"
        "Ctrl-C ends it; make stop ends the embedded servers."
    )


def server(port: int, workers: int = WORKERS, threads: int = THREADS) -> list[str]:
    """Return the server's command: threads, because a checkout mostly waits for a lock or a commit."""
    return [sys.executable, "-m", "config.server", str(port), str(workers), str(threads)]


def collect_static() -> None:
    """Outside DEBUG the files must lie in one place, under names that change with their content."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    if not settings.DEBUG:
        publish_static(Path(settings.STATIC_ROOT))


def publish_static(root: Path) -> None:
    """Collect into a folder of this process's own, then put each file in its place in `root` in one step.

    Several servers of one checkout may start, or serve, at the same time: a reader finds a whole file or, if
    it is new, none. The manifest comes last, when all that it names is there.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{root.name}.", dir=root.parent) as folder:
        collector = collectstatic.Command()
        backend = import_string(settings.STORAGES["staticfiles"]["BACKEND"])
        collector.storage = backend(location=folder)
        call_command(collector, interactive=False, verbosity=0)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        for file in sorted(files, key=lambda path: path.name == MANIFEST):
            place = root / file.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)


def share_metrics() -> None:
    """With METRICS each worker answers for all: their figures lie in one folder, empty at the start."""
    if settings.METRICS and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="holdfast-metrics-")


def main(arguments: list[str]) -> None:
    """Check the port, say the addresses, become the server."""
    try:
        port = port_of(arguments[0] if arguments else "8000")
        demand_free(port)
    except ValueError as error:
        sys.exit(f"holdfast: {error}")
    collect_static()
    share_metrics()
    print(greeting(port, debug=settings.DEBUG), flush=True)
    os.environ.update(SERVED | os.environ)
    os.execv(sys.executable, server(port))  # noqa: S606  Ctrl-C and signals must reach the server itself


if __name__ == "__main__":
    main(sys.argv[1:])
