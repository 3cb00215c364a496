"""Requests to the members of an etcd cluster: the next one is asked when one fails.

etcd3gw knows one member a client, so there is a client a member here. Every request is one that may be sent
twice.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import ConnectionFailedError, ConnectionTimeoutError, Etcd3Exception
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.background import after_fork
from locking.utils.clock import now

API: Final = "/v3/"
NOT_FOUND: Final = 5
"""gRPC's code for a lease that is over."""

UNAUTHENTICATED: Final = 16
"""gRPC's code for a token that has ended, or that a restarted member has forgotten."""

PAUSE: Final = 0.05
"""Seconds between two rounds over all members, as long as none has a leader."""

CONNECTIONS: Final = 32
"""Connections kept to each member."""


class Refused(BackendError):
    """etcd answered with an error.

    Attributes:
        code: gRPC's code, where the answer has one.
        text: what it said.
        repeated: another member was sent the same request before, and may have carried it out.
    """

    def __init__(self, where: str, error: Etcd3Exception, repeated: bool) -> None:
        self.code, self.text, self.repeated = _code_of(error), _text_of(error), repeated
        super().__init__(f"{where} refused: {self.text}")


class Client:
    """The members of one cluster.

    Args:
        alias: in `LOCKING`, for messages.
        urls: one for each member, `http://host:2379`.
        timeout: seconds that a request may take, shared out between the members, any of which may hang.
        tls: etcd3gw's `ca_cert`, `cert_cert` and `cert_key`.
        login: user and password, where the cluster has users.
    """

    def __init__(
        self,
        alias: str,
        urls: Sequence[str],
        timeout: float,
        tls: dict[str, Any],
        login: tuple[str, str] | None = None,
    ) -> None:
        self.alias, self.urls, self.timeout, self._tls, self._login = alias, list(urls), timeout, tls, login
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Forget all connections: they are the parent's."""
        self._mutex = threading.Lock()
        self._members: dict[str, Etcd3Client] = {}
        self._token: str | None = None
        self._preferred = self.urls[0]

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        with self._mutex:
            members, self._members = self._members, {}
        for member in members.values():
            member.session.close()

    def member(self, url: str) -> Etcd3Client:
        """Return the client of one member."""
        with self._mutex:
            if url not in self._members:
                self._members[url] = _client(url, self.timeout / len(self.urls), self._tls, self._token)
            return self._members[url]

    def preferred(self) -> Etcd3Client:
        """Return the client of the member that answered last."""
        return self.member(self._preferred)

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the answer of the first member that has one.

        Raises:
            Refused: the cluster says no. BackendUnavailable: none answered within the time.
        """
        until, repeated = now() + self.timeout, False
        while True:
            for url in self._in_turn():
                try:
                    answer = self._post(self.member(url), path, body)
                except (ConnectionFailedError, ConnectionTimeoutError, requests.RequestException) as error:
                    problem: Exception = error
                    repeated = repeated or _may_have_arrived(error)
                except Etcd3Exception as error:
                    raise Refused(f"etcd at {url} (LOCKING[{self.alias!r}])", error, repeated) from error
                else:
                    self._preferred = url
                    return answer
                if now() >= until:
                    break
            if len(self.urls) == 1 or now() >= until:
                raise self._unavailable(problem) from problem
            time.sleep(PAUSE)

    def _post(self, member: Etcd3Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request as the user, if there is one; a token that no longer counts is replaced once."""
        if self._login is None:
            return _posted(member, path, body)
        if self._token is None:
            self._log_in(member, self._login)
        try:
            return _posted(member, path, body)
        except Etcd3Exception as error:
            if _code_of(error) != UNAUTHENTICATED and "auth store is old" not in _text_of(error):
                raise
        self._log_in(member, self._login)
        return _posted(member, path, body)

    def _log_in(self, member: Etcd3Client, login: tuple[str, str]) -> None:
        """Have a token from one member; the others know it too.

        The request carries no token: etcd refuses even a login whose header has one that it forgot.
        """
        named = dict(zip(("name", "password"), login, strict=True))
        token = _posted(member, "/auth/authenticate", named, headers={"Authorization": None})["token"]
        with self._mutex:
            self._token = token
            for each in self._members.values():
                each.session.headers["Authorization"] = token

    def _in_turn(self) -> list[str]:
        first = self.urls.index(self._preferred)
        return self.urls[first:] + self.urls[:first]

    # leases, in whole seconds: a key that is bound to one ends with it

    def grant(self, lease: int, ttl: float) -> None:
        """Have the lease, new or as a former try left it: then it must be renewed."""
        try:
            self.ask("/lease/grant", TTL=str(math.ceil(ttl)), ID=str(lease))
        except Refused as error:
            if "already exists" not in error.text:
                raise
            self.renew(lease)

    def renew(self, lease: int) -> bool:
        """Give the lease its full length again; False when it has ended."""
        return int(self.ask("/lease/keepalive", ID=str(lease)).get("result", {}).get("TTL", 0)) > 0

    def revoke(self, lease: int) -> bool:
        """End a lease, which deletes its keys; False when it had ended already.

        The request may have been carried out by a member whose answer was lost before another member was
        asked: that the lease is gone then means that this request ended it.
        """
        try:
            self.ask("/lease/revoke", ID=str(lease))
        except Refused as error:
            if error.code == NOT_FOUND:
                return ended_by_us(error)
            raise
        return True

    def left(self, lease: int) -> int:
        """Return the whole seconds that are left of a lease, rounded down; 0 or less when it has ended."""
        return int(self.ask("/lease/timetolive", ID=str(lease)).get("TTL", 0))

    def _unavailable(self, error: Exception) -> BackendUnavailable:
        where, why = ", ".join(self.urls), _text_of(error) or type(error).__name__
        return BackendUnavailable(
            f"etcd at {where} (LOCKING[{self.alias!r}]) doesn't answer within {self.timeout:g} s: {why}"
        )


def ended_by_us(not_found: Refused) -> bool:
    """Whether a lease that was not found was most likely ended by an earlier try of the same request."""
    return not_found.repeated


def _may_have_arrived(error: BaseException) -> bool:
    """Whether a request that failed with `error` may have reached a member: not if nothing was connected."""
    return not any(isinstance(each, requests.ConnectTimeout | NewConnectionError) for each in causes(error))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what led to it; urllib3 wraps a cause as argument or as `reason`."""
    yield error
    for cause in (*error.args[:1], getattr(error, "reason", None), error.__cause__, error.__context__):
        if isinstance(cause, BaseException):
            yield from causes(cause)


def _posted(member: Etcd3Client, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = member.post(member.get_url(path), json=body, **more)
    return answer


def _client(url: str, timeout: float, tls: dict[str, Any], token: str | None) -> Etcd3Client:
    parts = urlsplit(url)
    client = Etcd3Client(
        host=parts.hostname or "",
        port=parts.port or 2379,
        protocol=parts.scheme,
        timeout=timeout,
        api_path=API,
        **tls,
    )
    # A proxy, a bundle of CAs or a .netrc of the environment would take the place of what is set here.
    client.session.trust_env = False
    if token is not None:
        client.session.headers["Authorization"] = token
    client.session.mount(f"{parts.scheme}://", HTTPAdapter(pool_maxsize=CONNECTIONS))
    return client


def _detail(error: Exception) -> dict[str, Any]:
    try:
        detail = json.loads(getattr(error, "detail_text", None) or "")
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}


def _code_of(error: Exception) -> int | None:
    return _detail(error).get("code")


def _text_of(error: Exception) -> str:
    return str(_detail(error).get("error") or getattr(error, "detail_text", None) or error)
