"""What `LOCKING` says about an etcd cluster, checked before anything is asked of it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from locking.backends.options import checked_options, misplaced, own_pair, own_text, readable_file
from locking.conf import AliasSettings

PREFIX: Final = "locks/"
TIMEOUT: Final = 3.0
TLS: Final = ("ca_cert", "cert_cert", "cert_key")

DEFAULTS: Final[dict[str, Any]] = {
    "prefix": PREFIX,
    "timeout": TIMEOUT,
    "user": None,
    "password": None,
    **dict.fromkeys(TLS),
}


def read_options(
    settings: AliasSettings, urls: list[str]
) -> tuple[str, float, dict[str, Any], tuple[str, str] | None]:
    """Return the options of an alias: the prefix of all keys, the seconds that a request may take, TLS' as
    requests takes them, and user and password, or None.

    Raises:
        ImproperlyConfigured: one that there isn't, half of a pair, a file that can't be read, or TLS' without
            https.
    """
    options = checked_options(settings, DEFAULTS)
    own_pair(settings, "user", "password")
    own_pair(settings, "cert_cert", "cert_key")
    files = {name: readable_file(settings, name) for name in TLS if options[name] is not None}
    plain = [url for url in urls if not url.startswith("https://")]
    if files and plain:
        raise misplaced(settings, min(files), f"is for https, but LOCATION has {plain[0]!r}")
    tls: dict[str, Any] = {"verify": files.get("ca_cert", True)}
    if "cert_cert" in files:
        tls["cert"] = files["cert_cert"], files["cert_key"]
    login = None if options["user"] is None else (own_text(settings, "user"), own_text(settings, "password"))
    return str(options["prefix"]), float(options["timeout"]), tls, login


def read_location(settings: AliasSettings) -> list[str]:
    """Return the URLs of the members.

    Raises:
        ImproperlyConfigured: there is none, or one that isn't a plain address.
    """
    location = settings.location
    urls = [location] if isinstance(location, str) else list(location or ())
    urls = [url.strip().rstrip("/") for text in urls for url in text.split(",") if url.strip()]
    if not urls:
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}] needs LOCATION, such as ['http://etcd1:2379', 'http://etcd2:2379']"
        )
    for url in urls:
        _check_url(settings.alias, url)
    return urls


def _check_url(alias: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None:  # not shown: it has a password in it
        raise ImproperlyConfigured(
            f"LOCKING[{alias!r}]['LOCATION'] names a user: say OPTIONS={{'user': …, 'password': …}}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ImproperlyConfigured(
            f"LOCKING[{alias!r}]['LOCATION'] has {url!r}: write http://host:2379 or https://host:2379"
        )
