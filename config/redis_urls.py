"""Redis addresses, said the way each library reads them."""

from urllib.parse import parse_qs, urlencode


def with_database(url: str, number: int) -> str:
    """The same server's database `number`.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as redis-py reads it.
        number: the logical database.

    Example:
        >>> with_database("redis://localhost:6379/0", 3)
        'redis://localhost:6379/0?db=3'
    """
    server, _, query = url.partition("?")
    wanted = parse_qs(query) | {"db": [str(number)]}  # redis-py lets ?db= win over the path
    return f"{server}?{urlencode(wanted, doseq=True)}"


def as_rate_storage(url: str, cluster: bool = False) -> str:
    """The address as `limits` reads it, which spells Unix sockets and clusters in its own way.

    Args:
        url: an address as redis-py reads it.
        cluster: whether it is a node of a Redis Cluster.

    Example:
        >>> as_rate_storage("unix:///run/redis.sock?db=2")
        'redis+unix:///run/redis.sock?db=2'
        >>> as_rate_storage("redis://10.0.0.1:6379", cluster=True)
        'redis+cluster://10.0.0.1:6379'
    """
    if cluster:
        return f"redis+cluster://{url.partition('://')[2]}"
    return f"redis+{url}" if url.startswith("unix://") else url


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
    server, _, query = url.partition("?")
    wanted = parse_qs(query)
    if "db" in wanted:
        wanted["virtual_host"] = wanted.pop("db")
    return f"redis+socket{server.removeprefix('unix')}?{urlencode(wanted, doseq=True)}".rstrip("?")
