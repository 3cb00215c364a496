"""Heartbeats of processes, in nodes that end with their session.

<root>/%presence/<KEY_PREFIX><client id>    JSON

No lock's folder is called that: `encode` leaves no bare percent sign. While the node stands the session
lives, so a sign of life takes no request of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from locking.backends.base import Heartbeat
from locking.backends.zookeeper.nodes import decode, encode
from locking.backends.zookeeper.session import (
    Session,
    children,
    data,
    deleted,
    ensured,
    is_answer,
    marked,
    written,
)

FOLDER: Final = "%presence"


class HeartbeatStore:
    """The records of one alias."""

    def __init__(self, session: Session, root: str, key_prefix: str) -> None:
        self._session, self._folder, self._prefix = session, f"{root}/{FOLDER}", key_prefix
        self._published: dict[str, tuple[int, str]] = {}

    def _node(self, client: str) -> str:
        return f"{self._folder}/{encode(self._prefix + client)}"

    def publish(self, records: Mapping[str, str | None], forget: Collection[str]) -> None:
        """Store heartbeats; see `BaseLockBackend.publish_heartbeats`."""
        for client, text in records.items():
            before, known = self._published.get(client, (0, None))
            if text is not None or before != self._session.number:
                self._write(client, text if text is not None else known)
        for client in forget:
            before, _ = self._published.pop(client, (0, None))
            if before and before == self._session.number:  # with any other session it has ended already
                self._session.ask(deleted(self._node(client)))

    def _write(self, client: str, text: str | None) -> None:
        if text is None:
            return
        node, content = self._node(client), text.encode()
        self._session.ask(ensured(self._folder))
        self._session.ask(written(node, content), marked(node, content))
        self._published[client] = (self._session.number, text)

    def read_all(self) -> dict[str, Heartbeat]:
        """Return every record of this alias."""
        (names,) = self._session.patiently(lambda: self._session.ask(children(self._folder)))
        decoded = [decode(name) for name in names] if is_answer(names) else []
        return self.read(
            [name.removeprefix(self._prefix) for name in decoded if name.startswith(self._prefix)]
        )

    def read(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        """Return what is known of these clients."""
        nodes = [self._node(client) for client in clients]
        answers = self._session.patiently(lambda: self._session.ask(*map(data, nodes)))
        return {
            client: Heartbeat(answer[0].decode(), None)
            for client, answer in zip(clients, answers, strict=True)
            if is_answer(answer)
        }
