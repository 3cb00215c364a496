"""What a connection pooler looks like from outside: it answers for the server.

Like pgbouncer it gives each client a cancellation key of its own, which is how a client can tell.
"""

from __future__ import annotations

import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

KEY_DATA = b"K\x00\x00\x00\x0c"


@contextmanager
def pooler_to(database: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entry of DATABASES that leads through a pooler to `database`."""
    server = f"{database['HOST']}/.s.PGSQL.{database['PORT'] or 5432}"
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-pool") as folder,
        socket.socket(socket.AF_UNIX) as door,
    ):
        door.bind(str(Path(folder) / ".s.PGSQL.6432"))
        door.listen()
        threading.Thread(target=_serve, args=(door, server), daemon=True).start()
        yield {**database, "HOST": folder, "PORT": "6432"}
        with suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)


def _serve(door: socket.socket, server_path: str) -> None:
    with suppress(OSError):
        while True:
            client, _ = door.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(server_path)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(_with_own_key(data))
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    source.close()


def _with_own_key(data: bytes) -> bytes:
    """Replace the server's process number in its BackendKeyData message by the pooler's own."""
    at = data.find(KEY_DATA)
    if at < 0:
        return data
    return data[: at + 5] + struct.pack("!i", 999_999) + data[at + 9 :]
