"""What `LOCKING` says about an ensemble, checked before anything is asked of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from locking.backends.options import misplaced, own_number, own_pair, own_text, readable_file, refuse_unknown
from locking.conf import AliasSettings

ROOT: Final = "/locks"
SESSION_TIMEOUT: Final = 10.0
TIMEOUT: Final = 3.0

OWN: Final = ("session_timeout", "timeout", "user", "password")
FILES: Final = ("ca", "certfile", "keyfile")
TLS: Final = (*FILES, "keyfile_password", "verify_certs", "check_hostname")
KNOWN: Final = {*OWN, *inspect.signature(KazooClient).parameters} - {"hosts", "client_id", "kwargs"}


def read_options(settings: AliasSettings) -> tuple[float, float, dict[str, Any]]:
    """Return the options of an alias: session timeout, time of a request (both in seconds), and the rest as
    KazooClient takes it.

    Raises:
        ImproperlyConfigured: one that there isn't, half of a pair, a file that can't be read, or TLS' without
            `use_ssl`.
    """
    refuse_unknown(settings, KNOWN)
    given = settings.options
    session_timeout = own_number(settings, given.get("session_timeout", SESSION_TIMEOUT), "session_timeout")
    timeout = own_number(settings, given.get("timeout", TIMEOUT), "timeout")
    sasl = given.get("sasl_options")
    if sasl is not None and not (isinstance(sasl, Mapping) and "mechanism" in sasl):
        raise misplaced(settings, "sasl_options", "must be a dict with a 'mechanism', such as DIGEST-MD5")
    if sasl is not None and find_spec("puresasl") is None:
        raise misplaced(settings, "sasl_options", "needs kazoo's SASL: pip install 'kazoo[sasl]'")
    others = {name: value for name, value in given.items() if name not in OWN}
    return session_timeout, timeout, {**others, **_tls(settings), **_login(settings)}


def _login(settings: AliasSettings) -> dict[str, Any]:
    """User and password as digest, and nodes that only this user may touch."""
    own_pair(settings, "user", "password")
    if settings.options.get("user") is None:
        return {}
    user, password = own_text(settings, "user"), own_text(settings, "password")
    if ":" in user:
        raise misplaced(settings, "user", "has a colon, which a digest can't")
    # Not CREATOR_ALL_ACL: by TLS the creator is the certificate too, which others may have.
    only_user = [make_digest_acl(user, password, all=True)]
    return {
        "auth_data": [*settings.options.get("auth_data", ()), ("digest", f"{user}:{password}")],
        "default_acl": settings.options.get("default_acl", only_user),
    }


def _tls(settings: AliasSettings) -> dict[str, Any]:
    """kazoo's TLS, but the server's name is compared with its certificate unless that is forbidden."""
    given = [name for name in TLS if settings.options.get(name) is not None]
    use_ssl = settings.options.get("use_ssl", False)
    if not isinstance(use_ssl, bool):
        raise misplaced(settings, "use_ssl", "must be True or False")
    if not use_ssl:
        if given:
            raise misplaced(settings, given[0], "counts only with 'use_ssl': True")
        return {}
    own_pair(settings, "certfile", "keyfile")
    verified = settings.options.get("verify_certs", True)
    compared = settings.options.get("check_hostname", verified)
    if compared and not verified:
        raise misplaced(settings, "check_hostname", "needs 'verify_certs': True")
    return {
        "check_hostname": compared,
        **{name: readable_file(settings, name) for name in FILES if name in given},
    }


def read_location(settings: AliasSettings) -> tuple[str, str]:
    """Return the servers, as kazoo wants them, and the folder of all locks.

    Raises:
        ImproperlyConfigured: there is no server.
    """
    location = settings.location
    if not location:
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}] needs LOCATION, such as 'zk1:2181,zk2:2181,zk3:2181/locks'"
        )
    text = location if isinstance(location, str) else ",".join(location)
    hosts, _, root = text.removeprefix("zk://").partition("/")
    if not hosts:
        raise ImproperlyConfigured(f"LOCKING[{settings.alias!r}]['LOCATION'] names no server: {text!r}")
    return hosts, f"/{root.strip('/')}" if root.strip("/") else ROOT
