"""A proxy before PostgreSQL that cuts the connection at COMMIT: before it, or before its answer."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections


class DroppingProxy:
    """Passes everything on; `cut` says what happens to the next COMMIT."""

    def __init__(self, folder: Path, database: dict[str, Any]) -> None:
        self.folder = folder
        self._database = database
        self.cut: str | None = None
        self.after_cut: Callable[[], object] = lambda: None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            pump = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(pump)
            pump.start()

    def _serve(self, client: socket.socket) -> None:
        with client, self._connected() as server, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is client and self.cut and b"COMMIT" in data:
                        self._cut(server, data)
                        return
                    (server if key.fileobj is client else client).sendall(data)

    def _cut(self, server: socket.socket, commit: bytes) -> None:
        """Lose the COMMIT itself, or its answer."""
        when, self.cut = self.cut, None
        if when == "behind":
            server.sendall(commit)
            server.recv(65536)
        else:
            server.close()  # rolled back: else what comes now would wait for the rows of the lost transaction
        self.after_cut()

    def _connected(self) -> socket.socket:
        host, port = self._database["HOST"], self._database["PORT"] or 5432
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
            return server
        return socket.create_connection((host or "localhost", int(port)))

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


@contextmanager
def proxied(folder: Path) -> Iterator[tuple[DroppingProxy, dict[str, Any]]]:
    """Give a proxy before the default database, and the settings that go through it."""
    default = dict(connections["default"].settings_dict)
    proxy = DroppingProxy(folder, default)
    try:
        yield proxy, default | {"HOST": str(folder), "PORT": "5432"}
    finally:
        proxy.close()
