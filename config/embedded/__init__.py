"""A private PostgreSQL and a private Redis for this checkout, started on first need.

    python -m config.embedded start|stop|status|remove

The settings ask for them when DATABASE_URL or REDIS_URL is unset. Whichever process comes first starts the
servers; they outlive it and serve every later process of the same checkout, until `stop`. Both listen on Unix
sockets in a folder that only their own account (and root) may enter: no port to collide on, no password to
leak, and two checkouts can't meet. Whether a server lives is asked of it, never believed from a pid file.

    errors.py    the one error, and the sentences that it says
    account.py   who the servers run as
    home.py      where they live
    server.py    starting once, waiting, stopping: the same for both
    postgres.py, redis.py
"""

from pathlib import Path
from typing import Any

from config.embedded.errors import EmbeddedError
from config.embedded.home import CHECKOUT, Home, settled
from config.embedded.postgres import PORT, UNSAID, Postgres
from config.embedded.redis import Redis
from config.embedded.server import Server

__all__ = [
    "EmbeddedError",
    "Home",
    "Postgres",
    "Redis",
    "Server",
    "database",
    "redis_url",
    "remove",
    "servers",
    "start",
    "stop",
]


def servers(checkout: Path = CHECKOUT) -> list[Server]:
    """The two servers of a checkout, running or not.

    Args:
        checkout: the project's root folder.

    Raises:
        EmbeddedError: this user can't have servers there.
    """
    home = settled(checkout)
    return [Postgres(home), Redis(home)]


def database(checkout: Path = CHECKOUT) -> dict[str, Any]:
    """Start PostgreSQL if need be.

    Args:
        checkout: the project's root folder.

    Returns:
        What Django's DATABASES wants.

    Raises:
        EmbeddedError: it can't be started; the message says why and what to do.

    Example:
        >>> DATABASES = {"default": database()}  # doctest: +SKIP
    """
    server = Postgres(settled(checkout))
    server.start()
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": server.name,
        "USER": server.name,
        "HOST": str(server.home.path),
        "PORT": PORT,
        "OPTIONS": dict(UNSAID),
    }


def redis_url(checkout: Path = CHECKOUT) -> str:
    """Start Redis if need be.

    Args:
        checkout: the project's root folder.

    Returns:
        Its address, as redis-py reads it.

    Raises:
        EmbeddedError: it can't be started; the message says why and what to do.

    Example:
        >>> redis.Redis.from_url(redis_url())  # doctest: +SKIP
    """
    server = Redis(settled(checkout))
    server.start()
    return server.url()


def start(checkout: Path = CHECKOUT) -> None:
    """Have both servers running; raises EmbeddedError."""
    for server in servers(checkout):
        server.start()


def stop(checkout: Path = CHECKOUT) -> list[str]:
    """Stop what runs, start nothing; returns the names of the servers that were stopped."""
    if not (checkout / ".run").is_dir():
        return []
    return [server.label for server in servers(checkout) if server.stop()]


def remove(checkout: Path = CHECKOUT) -> list[str]:
    """Stop both servers and delete their data; returns the names of the servers that were stopped."""
    stopped = stop(checkout)
    if (checkout / ".run").is_dir():
        Home(checkout).remove()
    return stopped
