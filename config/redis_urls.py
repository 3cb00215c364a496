"""Redis addresses, said the way each library reads them."""

from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit


def with_database(url: str, number: int) -> str:
    """Return the address of the same server's database `number`.

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
    """Return the address as `limits` spells it: Unix sockets and clusters differ.

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
        return _as_cluster_storage(url)
    return f"redis+{url}" if url.startswith("unix://") else url


def _as_cluster_storage(url: str) -> str:
    """`limits` wants the port to be named, and has no scheme for TLS: `ssl=true` stands for it."""
    parts = urlsplit(url)
    port = "" if parts.port else ":6379"
    options = [parts.query] * bool(parts.query) + ["ssl=true"] * (parts.scheme == "rediss")
    return f"redis+cluster://{parts.netloc}{port}{parts.path}{'?' * bool(options)}{'&'.join(options)}"


def as_broker(url: str) -> str:
    """Return the address for Celery: without redis-py's options, trusting any certificate.

    Server, login, database and TLS are the same; time-outs and the like stay out, Celery has its own.

    Args:
        url: an address as redis-py reads it.

    Example:
        >>> as_broker("unix:///run/redis.sock?db=2")
        'redis+socket:///run/redis.sock?virtual_host=2'
        >>> as_broker("rediss://cache.example:6380")
        'rediss://cache.example:6380/0?ssl_cert_reqs=required'
    """
    parts = urlsplit(url)
    asked = dict(parse_qsl(parts.query))
    login, _, server = parts.netloc.rpartition("@")
    place = f"{login or _login(asked)}@{server}".removeprefix("@")
    database = asked.get("db")
    if parts.scheme == "unix":
        return f"redis+socket://{place}{parts.path}?virtual_host={database or 0}"
    tls = {name: value for name, value in asked.items() if name.startswith("ssl_")}
    if parts.scheme == "rediss":
        tls = {"ssl_cert_reqs": "required"} | tls  # as redis-py has it
    options = f"?{urlencode(tls)}" if tls else ""
    return f"{parts.scheme}://{place}/{database or parts.path.strip('/') or 0}{options}"


def _login(asked: dict[str, str]) -> str:
    """User and password where the address has them among its options."""
    if "password" not in asked:
        return ""
    return ":".join(quote(asked.get(name, ""), safe="") for name in ("username", "password"))
