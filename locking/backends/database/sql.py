"""The statements of the row form on each engine, and nothing else.

Time is the database's: whole microseconds since 1970, in UTC, the same throughout one statement. It is read
before a statement waits for a row, so what is called expired surely is, and a lease is never shorter than
its holder believes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CHANNEL: Final = "holdfast_locks"

UPSERT: Final = """
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
RETURNING owner, token, expires - {now}
"""
UPDATE: Final = """
UPDATE locking_row SET
    token = CASE WHEN owner = %(owner)s AND expires > {now} THEN token
                 ELSE {greatest}(token + 1, {now}) END,
    since = CASE WHEN owner = %(owner)s AND expires > {now} THEN since ELSE {now} END,
    owner = %(owner)s, expires = {now} + %(ttl)s, kept = kept OR %(kept)s
WHERE id = %(id)s AND (expires <= {now} OR owner = %(owner)s)
"""
INSERT: Final = """
INSERT IGNORE INTO locking_row (id, name, owner, token, expires, since, wanted, kept)
VALUES (%(id)s, %(name)s, %(owner)s, {now}, {now} + %(ttl)s, {now}, 0, %(kept)s)
"""
SEEN: Final = "SELECT owner, token, expires - {now} FROM locking_row WHERE id = %(id)s AND expires > {now}"
EXTEND: Final = """
UPDATE locking_row SET expires = {now} + %(ttl)s WHERE id = %(id)s AND owner = %(owner)s AND expires > {now}
"""
EXTEND_MANY: Final = """
WITH free AS (SELECT id FROM locking_row WHERE id = ANY(%(ids)s::text[]) FOR UPDATE SKIP LOCKED)
UPDATE locking_row SET expires = {now} + lease.ttl
  FROM unnest(%(ids)s::text[], %(owners)s::text[], %(ttls)s::bigint[]) AS lease (id, owner, ttl)
       JOIN free USING (id)
 WHERE locking_row.id = lease.id AND locking_row.owner = lease.owner AND expires > {now}
RETURNING locking_row.id, locking_row.owner
"""
RELEASE: Final = """
UPDATE locking_row SET expires = 0, owner = '' WHERE id = %(id)s AND owner = %(owner)s AND expires > {now}
"""
TELLING: Final = """
WITH done AS ({statement} RETURNING id, wanted)
SELECT CASE WHEN wanted > {now} THEN pg_notify('{channel}', id)::text END FROM done
"""
HELD: Final = """
SELECT name, owner, token, expires - {now}, since FROM locking_row
 WHERE expires > {now} AND {prefixed} ORDER BY since, id LIMIT %(limit)s OFFSET %(offset)s
"""
COUNT: Final = "SELECT COUNT(*) FROM locking_row WHERE expires > {now} AND {prefixed}"
FORGOTTEN: Final = "expires < {now} - 86400000000 AND since < {now} - 86400000000 AND NOT kept"

TELL: Final = """
INSERT INTO locking_process (id, text, seen) VALUES (%(id)s, %(text)s, {now})
ON CONFLICT (id) DO UPDATE SET text = excluded.text, seen = excluded.seen
"""
TELL_MYSQL: Final = """
INSERT INTO locking_process (id, text, seen) VALUES (%(id)s, %(text)s, {now})
ON DUPLICATE KEY UPDATE text = VALUES(text), seen = VALUES(seen)
"""


class ProcessStatements(NamedTuple):
    """What is sent about the processes that hold locks.

    Attributes:
        tell: notes a sign of life and what the process tells.
        same: notes a sign of life of one that tells the same as before.
        read: what is known of some; `CLIENTS` stands for their parameters.
        read_all: what is known of all.
        forget: deletes a record.
        tidy: deletes those that are older than `kept`.
    """

    tell: str
    same: str
    read: str
    read_all: str
    forget: str
    tidy: str


def _process_statements(tell: str, now: str) -> ProcessStatements:
    return ProcessStatements(
        tell=tell.format(now=now),
        same=f"UPDATE locking_process SET seen = {now} WHERE id = %(id)s",  # noqa: S608 - a constant
        read=f"SELECT id, text, {now} - seen FROM locking_process WHERE id IN (CLIENTS)",  # noqa: S608
        read_all=f"SELECT id, text, {now} - seen FROM locking_process",  # noqa: S608
        forget="DELETE FROM locking_process WHERE id = %(id)s",
        tidy=f"DELETE FROM locking_process WHERE seen < {now} - %(kept)s",  # noqa: S608
    )


class Statements(NamedTuple):
    """What is sent to one engine.

    Attributes:
        take: takes the lock, or refuses, in one statement; None where that takes `update` and `insert`.
        extend_many: for a batch of leases, but those whose row another transaction has locked; None where
            they are extended one by one.
        presence: about the processes that hold locks.
        telling: `release` and `extend` return a row when something was done, and wake waiters.
    """

    take: str | None
    update: str
    insert: str
    seen: str
    extend: str
    shorten: str
    extend_many: str | None
    release: str
    held: str
    counted: str
    sweep: str
    presence: ProcessStatements
    telling: bool = False


def _statements(
    now: str, greatest: str, prefixed: str, sweep: str, tell: str = TELL, **parts: str | None
) -> Statements:
    over = "locking_row.expires <= excluded.since"
    mine = "(locking_row.owner = excluded.owner AND locking_row.expires > excluded.since)"

    def written(text: str) -> str:
        return text.format(now=now, greatest=greatest, prefixed=prefixed, over=over, mine=mine)

    texts = {
        "take": UPSERT, "update": UPDATE, "insert": INSERT, "seen": SEEN, "extend": EXTEND,
        "shorten": EXTEND, "extend_many": EXTEND_MANY, "release": RELEASE, "held": HELD, "counted": COUNT,
        "sweep": sweep.replace("FORGOTTEN", FORGOTTEN),
    }  # fmt: skip
    ready: dict[str, str | None] = {name: written(text) for name, text in texts.items()}
    return Statements(**{**ready, **parts}, presence=_process_statements(tell, now))  # type: ignore[arg-type]


def _telling(statement: str, now: str) -> str:
    return TELLING.format(statement=statement.format(now=now), now=now, channel=CHANNEL)


PG_NOW: Final = "(extract(epoch from statement_timestamp()) * 1000000)::bigint"

POSTGRESQL: Final = _statements(
    PG_NOW,
    "greatest",
    "starts_with(name, %(prefix)s)",
    "DELETE FROM locking_row WHERE id IN"
    " (SELECT id FROM locking_row WHERE FORGOTTEN LIMIT %(limit)s FOR UPDATE SKIP LOCKED)",
    release=_telling(RELEASE, PG_NOW),
    shorten=_telling(EXTEND, PG_NOW),
)._replace(telling=True)

MYSQL: Final = _statements(
    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "GREATEST",
    "CAST(LEFT(name, CHAR_LENGTH(%(prefix)s)) AS BINARY) = CAST(%(prefix)s AS BINARY)",
    "DELETE FROM locking_row WHERE FORGOTTEN LIMIT %(limit)s",
    TELL_MYSQL,
    take=None,
    extend_many=None,
)

SQLITE: Final = _statements(
    "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)",
    "MAX",
    "substr(name, 1, length(%(prefix)s)) = %(prefix)s",
    "DELETE FROM locking_row WHERE id IN (SELECT id FROM locking_row WHERE FORGOTTEN LIMIT %(limit)s)",
    extend_many=None,
)

BY_VENDOR: Final = {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlite": SQLITE}
