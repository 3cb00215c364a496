"""A TCP proxy in front of Redis that loses replies, holds requests back and cuts connections, on demand."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Passes bytes on, until it is given a request (by some bytes in it) that is to go wrong."""

    def __init__(self, server_path: str) -> None:
        self.server_path = server_path
        self.seen: list[bytes] = []
        self._lose: list[bytes] = []
        self._hold: list[bytes] = []
        self._held: list[tuple[socket.socket, bytes]] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def lose_reply_to(self, request: bytes, times: int = 1) -> None:
        """Carry out the next `times` requests that contain `request`, but close the socket unanswered."""
        self._lose += [request] * times

    def hold(self, request: bytes, times: int = 1) -> None:
        """Keep the next `times` requests that contain `request` on the way, until `let_go`."""
        self._hold += [request] * times

    def let_go(self) -> int:
        """Pass on what was held, though its sender may have gone; returns how many requests that were."""
        held, self._held = self._held, []
        for server, request in held:
            with suppress(OSError):
                server.sendall(request)
        return len(held)

    def cut(self) -> None:
        """Close every connection."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more, and close all."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # a connection that it has just accepted is closed, too
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in [self._door, *self._sockets]:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self.server_path)
                self._sockets += [client, server]
                self._start(self._converse, client, server)

    def _converse(self, client: socket.socket, server: socket.socket) -> None:
        silent = threading.Event()
        self._start(self._answer, client, server, silent)
        with suppress(OSError):
            while request := client.recv(65536):
                self.seen.append(request)
                if _taken(self._hold, request):
                    self._held.append((server, request))
                    continue
                if _taken(self._lose, request):
                    silent.set()
                server.sendall(request)
        if not any(held is server for held, _ in self._held):
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        with suppress(OSError):
            while reply := server.recv(65536):
                if silent.is_set():
                    break
                client.sendall(reply)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _taken(wanted: list[bytes], request: bytes) -> bool:
    for each in wanted:
        if each in request:
            wanted.remove(each)
            return True
    return False


@contextmanager
def proxy_to(server_path: str) -> Iterator[Proxy]:
    """A proxy for the length of the block."""
    proxy = Proxy(server_path)
    try:
        yield proxy
    finally:
        proxy.close()
