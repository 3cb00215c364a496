"""Requests to the members of an etcd cluster by its JSON gateway: the next one is asked when one fails.

Every request is one that may be sent twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.background import after_fork
from locking.utils.clock import now

API: Final = "/v3"
SILENCES: Final = (408, 503, 504)
"""What a member answers that has no leader, or whose leader doesn't answer."""

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
        text: what it said.
        code: gRPC's code, where the answer has one.
        repeated: another member was sent the same request before, and may have carried it out.
    """

    repeated = False

    def __init__(self, where: str, text: str, code: int | None = None) -> None:
        self.text, self.code = text, code
        super().__init__(f"{where} refused: {text}")


class Client:
    """The members of one cluster.

    Args:
        alias: in `LOCKING`, for messages.
        urls: one for each member, `http://host:2379`.
        timeout: seconds that a request may take, shared out between the members, any of which may hang.
        tls: requests' `verify` and `cert`.
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
        self.preferred = self.urls[0]  # the member that answered last
        self.session = requests.Session()
        # A proxy, a bundle of CAs or a .netrc of the environment would take the place of what is set here.
        self.session.trust_env = False
        for name, value in self._tls.items():
            setattr(self.session, name, value)
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        self.session.close()

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the answer of the first member that has one.

        Raises:
            Refused: the cluster says no. BackendUnavailable: none answered within the time.
        """
        until, repeated = now() + self.timeout, False
        while True:
            first = self.urls.index(self.preferred)
            for url in self.urls[first:] + self.urls[:first]:
                try:
                    answer = self._post(url, path, body)
                except requests.RequestException as error:
                    problem, repeated = error, repeated or _may_have_arrived(error)
                except Refused as error:
                    error.repeated = repeated
                    raise
                else:
                    self.preferred = url
                    return answer
                if now() >= until:
                    break
            if len(self.urls) == 1 or now() >= until:
                raise BackendUnavailable(
                    f"etcd at {', '.join(self.urls)} (LOCKING[{self.alias!r}]) doesn't answer within"
                    f" {self.timeout:g} s: {str(problem) or type(problem).__name__}"
                ) from problem
            time.sleep(PAUSE)

    def _post(self, url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request as the user, if there is one; a token that no longer counts is replaced once."""
        if self._login is not None and "Authorization" not in self.session.headers:
            self._log_in(url, *self._login)
        try:
            return self.send(url, path, body)
        except Refused as error:
            forgotten = error.code == UNAUTHENTICATED or "auth store is old" in error.text
            if self._login is None or not forgotten:
                raise
        self._log_in(url, *self._login)
        return self.send(url, path, body)

    def _log_in(self, url: str, name: str, password: str) -> None:
        """Have a token from one member; the others know it too.

        The request carries no token: etcd refuses even a login whose header has one that it forgot.
        """
        named = {"name": name, "password": password}
        token = self.send(url, "/auth/authenticate", named, headers={"Authorization": None})["token"]
        self.session.headers["Authorization"] = token

    def send(self, url: str, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Return one member's answer; Refused, or an error of requests."""
        timeout = self.timeout / len(self.urls)
        with self.session.post(f"{url}{API}{path}", json=body, timeout=timeout, **more) as answer:
            if answer.status_code in SILENCES:
                raise requests.ConnectionError(answer.text)
            if answer.ok:
                return dict(answer.json())
        try:
            said = answer.json()
            text, code = said["error"], said.get("code")
        except (ValueError, TypeError, KeyError):
            text, code = answer.text, None
        raise Refused(f"etcd at {url} (LOCKING[{self.alias!r}])", text, code)

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
                return error.repeated
            raise
        return True

    def left(self, lease: int) -> int:
        """Return the whole seconds that are left of a lease, rounded down; 0 or less when it has ended."""
        return int(self.ask("/lease/timetolive", ID=str(lease)).get("TTL", 0))


def _may_have_arrived(error: requests.RequestException) -> bool:
    """Whether a request that failed with `error` may have reached a member: not if nothing was connected."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return not isinstance(error, requests.ConnectTimeout) and not isinstance(reason, NewConnectionError)
