"""Heartbeats of processes, in nodes that end with their session.

<root>/%presence/<KEY_PREFIX><client id>    JSON

No lock's folder is called that: `encode` leaves no bare percent sign. While the node stands the session
lives, so a sign of life takes no request of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from locking.backends.base import Heartbeat
from locking.backends.capabilities import Heartbeats
from locking.backends.zookeeper.nodes import decode, encode
from locking.backends.zookeeper.session import Session, is_answer, request

FOLDER: Final = "%presence"


class HeartbeatNodes(Heartbeats):
    """Heartbeats of a backend's processes."""

    _session: Session
    _root: str
    _published: dict[str, tuple[int, str]]

    def _heartbeat_node(self, client: str) -> str:
        return f"{self._root}/{FOLDER}/{encode(self.key(client))}"

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        for client, text in records.items():
            before, known = self._published.get(client, (0, None))
            if text is not None or before != self._session.number:
                self._write_heartbeat(client, text if text is not None else known)
        for client in forget:
            before, _ = self._published.pop(client, (0, None))
            if before and before == self._session.number:  # with any other session it has ended already
                self._session.ask(request("delete", self._heartbeat_node(client)))

    def _write_heartbeat(self, client: str, text: str | None) -> None:
        if text is None:
            return
        node, content = self._heartbeat_node(client), text.encode()
        self._session.ask(request("ensure_path", f"{self._root}/{FOLDER}"))
        self._session.ask(request("set", node, content), request("create", node, content, ephemeral=True))
        self._published[client] = (self._session.number, text)

    def processes(self) -> dict[str, Heartbeat]:
        folder, prefix = f"{self._root}/{FOLDER}", self.settings.key_prefix
        (names,) = self._session.ask_patiently(request("get_children", folder))
        found = [decode(name) for name in names] if is_answer(names) else []
        return self.heartbeats([name.removeprefix(prefix) for name in found if name.startswith(prefix)])

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        asked = [request("get", self._heartbeat_node(client)) for client in clients]
        answers = self._session.ask_patiently(*asked)
        return {
            client: Heartbeat(answer[0].decode(), None)
            for client, answer in zip(clients, answers, strict=True)
            if is_answer(answer)
        }
