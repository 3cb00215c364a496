"""The statements of the row form on each engine, and nothing else.

Time is the database's: whole microseconds since 1970, in UTC, the same throughout one statement. It is read
before a statement waits for a row, so what is called expired surely is, and a lease is never shorter than
its holder believes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CHANNEL: Final = "holdfast_locks"

TEXTS: Final = {
    # takes the lock, or refuses, in one statement
    "take": """
INSERT INTO locking_row (id, name, owner, token, expires, since, wanted, kept)
VALUES (%(id)s, %(name)s, %(owner)s, {now}, {now} + %(ttl)s, {now}, 0, %(kept)s)
ON CONFLICT (id) DO UPDATE SET
    token = CASE WHEN {mine} THEN locking_row.token
                 WHEN {over} THEN {greatest}(locking_row.token + 1, excluded.since)
                 ELSE locking_row.token END,
    since = CASE WHEN {over} THEN excluded.since ELSE locking_row.since END,
    expires = CASE WHEN {over} OR {mine} THEN excluded.expires ELSE locking_row.expires END,
    owner = CASE WHEN {over} THEN excluded.owner ELSE locking_row.owner END,
    wanted = CASE WHEN {over} OR {mine} THEN locking_row.wanted ELSE excluded.since + %(heard)s END,
    kept = locking_row.kept OR excluded.kept
WHERE %(queue)s OR {over} OR {mine}
RETURNING owner, token, expires - {now}, since = {now}
""",
    # where there is no such statement
    "update": """
UPDATE locking_row SET
    token = CASE WHEN owner = %(owner)s AND expires > {now} THEN token
                 ELSE {greatest}(token + 1, {now}) END,
    since = CASE WHEN owner = %(owner)s AND expires > {now} THEN since ELSE {now} END,
    owner = %(owner)s, expires = {now} + %(ttl)s, kept = kept OR %(kept)s
WHERE id = %(id)s AND (expires <= {now} OR owner = %(owner)s)
""",
    "insert": """
INSERT IGNORE INTO locking_row (id, name, owner, token, expires, since, wanted, kept)
VALUES (%(id)s, %(name)s, %(owner)s, {now}, {now} + %(ttl)s, {now}, 0, %(kept)s)
""",
    "seen": """
SELECT owner, token, expires - {now}, 1 = 0 FROM locking_row WHERE id = %(id)s AND expires > {now}
""",
    "extend": """
UPDATE locking_row SET expires = {greatest}(expires, {now} + %(ttl)s)
 WHERE id = %(id)s AND owner = %(owner)s AND expires > {now}
""",
    "shorten": """
UPDATE locking_row SET expires = {now} + %(ttl)s WHERE id = %(id)s AND owner = %(owner)s AND expires > {now}
""",
    # but leases whose row another transaction has locked
    "extend_many": """
WITH free AS (SELECT id FROM locking_row WHERE id = ANY(%(ids)s::text[]) FOR UPDATE SKIP LOCKED)
UPDATE locking_row SET expires = greatest(expires, {now} + lease.ttl)
  FROM unnest(%(ids)s::text[], %(owners)s::text[], %(ttls)s::bigint[]) AS lease (id, owner, ttl)
       JOIN free USING (id)
 WHERE locking_row.id = lease.id AND locking_row.owner = lease.owner AND expires > {now}
RETURNING locking_row.id, locking_row.owner
""",
    "release": """
UPDATE locking_row SET expires = 0, owner = '' WHERE id = %(id)s AND owner = %(owner)s AND expires > {now}
""",
    "held": """
SELECT name, owner, token, expires - {now}, since FROM locking_row
 WHERE expires > {now} AND {prefixed} ORDER BY since, id LIMIT %(limit)s OFFSET %(offset)s
""",
    "count": "SELECT COUNT(*) FROM locking_row WHERE expires > {now} AND {prefixed}",
    # processes that hold locks
    "tell": """
INSERT INTO locking_process (id, text, seen) VALUES (%(id)s, %(text)s, {now})
ON CONFLICT (id) DO UPDATE SET text = excluded.text, seen = excluded.seen
""",
    "tell_same": "UPDATE locking_process SET seen = {now} WHERE id = %(id)s",
    "all_heartbeats": "SELECT id, text, {now} - seen FROM locking_process",
    "forget": "DELETE FROM locking_process WHERE id = %(id)s",
    "tidy": "DELETE FROM locking_process WHERE seen < {now} - %(kept)s",
}

# PostgreSQL's `release` and `shorten` return a row when something was done, and wake waiters.
TELLING: Final = """
WITH done AS ({statement} RETURNING id, wanted)
SELECT CASE WHEN wanted > {now} THEN pg_notify('holdfast_locks', id)::text END FROM done
"""
FORGOTTEN: Final = "expires < {now} - 86400000000 AND since < {now} - 86400000000 AND NOT kept"


def _made(now: str, greatest: str, prefixed: str, without: Iterable[str] = (), **more: str) -> dict[str, str]:
    over = "locking_row.expires <= excluded.since"
    mine = "(locking_row.owner = excluded.owner AND locking_row.expires > excluded.since)"
    parts = {"now": now, "greatest": greatest, "prefixed": prefixed, "over": over, "mine": mine}
    texts = {**TEXTS, **more}
    return {name: text.format(**parts) for name, text in texts.items() if name not in without}


BY_VENDOR: Final = {
    "postgresql": _made(
        "(extract(epoch from statement_timestamp()) * 1000000)::bigint",
        "greatest",
        "starts_with(name, %(prefix)s)",
        sweep="DELETE FROM locking_row WHERE id IN"  # noqa: S608 - constants, here and below
        f" (SELECT id FROM locking_row WHERE {FORGOTTEN} LIMIT %(limit)s FOR UPDATE SKIP LOCKED)",
        release=TELLING.replace("{statement}", TEXTS["release"]),
        shorten=TELLING.replace("{statement}", TEXTS["shorten"]),
    ),
    "mysql": _made(
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        "GREATEST",
        "CAST(LEFT(name, CHAR_LENGTH(%(prefix)s)) AS BINARY) = CAST(%(prefix)s AS BINARY)",
        without=("take", "extend_many"),
        sweep=f"DELETE FROM locking_row WHERE {FORGOTTEN} LIMIT %(limit)s",  # noqa: S608
        tell="INSERT INTO locking_process (id, text, seen) VALUES (%(id)s, %(text)s, {now})"
        " ON DUPLICATE KEY UPDATE text = VALUES(text), seen = VALUES(seen)",
    ),
    "sqlite": _made(
        "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)",
        "MAX",
        "substr(name, 1, length(%(prefix)s)) = %(prefix)s",
        without=("extend_many",),
        sweep="DELETE FROM locking_row WHERE id IN"  # noqa: S608
        f" (SELECT id FROM locking_row WHERE {FORGOTTEN} LIMIT %(limit)s)",
    ),
}
