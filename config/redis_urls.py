"""Redis addresses, said the way each library reads them."""

from urllib.parse import parse_qs, urlencode, urlsplit


def with_database(url: str, number: int) -> str:
    """The same server's database `number`.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as redis-py reads it.
        number: the logical database.

    Example:
        >>> with_database("redis://localhost:6379/0", 3)
        'redis://localhost:6379/0?db=3'
    """
    parts = urlsplit(url)
    query = parse_qs(parts.query) | {"db": [str(number)]}  # redis-py lets ?db= win over the path
    # Not urlunsplit(): before Python 3.12.4 it drops the slashes of unix:///…, which has no host.
    return f"{url.partition('?')[0]}?{urlencode(query, doseq=True)}"


def as_broker(url: str) -> str:
    """The address as Celery reads it, which spells Unix sockets in its own way.

    Args:
        url: an address as redis-py reads it.

    Example:
        >>> as_broker("unix:///run/redis.sock?db=2")
        'redis+socket:///run/redis.sock?virtual_host=2'
    """
    if not url.startswith("unix://"):
        return url
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if "db" in query:
        query["virtual_host"] = query.pop("db")
    return f"redis+socket://{parts.netloc}{parts.path}?{urlencode(query, doseq=True)}".rstrip("?")
