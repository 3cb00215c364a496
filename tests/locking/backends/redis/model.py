"""A Redis server in this process: the real Lua scripts on a small key space, and a clock to turn."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from functools import cache
from itertools import takewhile
from typing import Any

import lupa.lua51 as lua
from redis.exceptions import (
    AskError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)

Value = bytes | dict | list
RUNTIME = lua.LuaRuntime(encoding=None, unpack_returned_tuples=False)


class Status(bytes):
    """A status reply, such as OK."""


LIBRARY: Any = RUNTIME.execute(
    b"""
    return function(send)
        local function call(...)
            local reply = send(...)
            if type(reply) == 'table' and reply.err then error(reply) end
            return reply
        end
        return {call = call, pcall = send, error_reply = function(text) return {err = text} end}
    end
    """
)
"""Makes what scripts know as `redis` of a function that sends one command; errors are tables."""

PROTECTED: Any = RUNTIME.execute(
    b"""
    return function(script, redis, KEYS, ARGV)
        local done, reply = pcall(script, redis, KEYS, ARGV)
        if done or (type(reply) == 'table' and reply.err) then return reply end
        return {err = 'ERR ' .. tostring(reply)}
    end
    """
)
"""Runs a script; what it raises is its reply."""


@cache
def compiled(source: bytes) -> Any:
    """Return the script as a function of `redis`, KEYS and ARGV."""
    return RUNTIME.execute(b"return function(redis, KEYS, ARGV) " + source + b"\nend")


@cache
def method_of(verb: bytes) -> str:
    """Return the name of the method that carries out a command."""
    return f"do_{verb.decode().lower()}"


class Clock:
    """Seconds that pass only on request."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def sleep(self, seconds: float) -> None:
        """Pass."""
        self.now += max(seconds, 0.0)


class ModelServer:
    """One server.

    Attributes:
        listeners: by channel, what is called with each message.
        minted: by member of the index (a lock and its holder), every token that the server has granted it.
        moved: what it answers when another has its slots.
        asks: what it answers while its slots are moving to another.
        refuses: whether its user may do nothing at all.
        is_deaf: whether it forbids the channels of Redisson's clients.
    """

    def __init__(self, clock: Clock, replicas: int = 0) -> None:
        self.clock, self.replicas = clock, replicas
        self.scripts: dict[bytes, bytes] = {}
        self.values: dict[bytes, Any] = {}
        self.ends: dict[bytes, float] = {}
        self.listeners: defaultdict[bytes, set[Any]] = defaultdict(set)
        self.minted: defaultdict[bytes, set[int]] = defaultdict(set)
        self.moved: str | None = None
        self.asks: str | None = None
        self.refuses = self.is_deaf = False
        self._redis = LIBRARY(self._send)
        self._defect: Exception | None = None

    def share(self, other: ModelServer) -> None:
        """Have the data of another server: the slots of a cluster that are about to move."""
        self.values, self.ends, self.minted = other.values, other.ends, other.minted

    def forget(self) -> None:
        """Lose all data, as a restart without persistence does."""
        self.values.clear()
        self.ends.clear()
        self.scripts.clear()

    def execute(self, *parts: bytes) -> Any:
        """Return the reply; an error is raised."""
        verb, arguments = parts[0], parts[1:]
        if self.moved is not None and verb not in (b"CLUSTER", b"ASKING"):
            raise MovedError(self.moved)
        if self.asks is not None and verb not in (b"CLUSTER", b"ASKING"):
            raise AskError(self.asks)
        if self.refuses and verb != b"CLUSTER":
            raise NoPermissionError("this user may not use that command")
        return getattr(self, method_of(verb))(*arguments)

    # scripts

    def do_evalsha(self, digest: bytes, count: bytes, *rest: bytes) -> Any:
        """EVALSHA."""
        if digest not in self.scripts:
            raise NoScriptError("No matching script. Please use EVAL.")
        return self._run(self.scripts[digest], int(count), rest)

    def do_eval(self, source: bytes, count: bytes, *rest: bytes) -> Any:
        """EVAL."""
        self.scripts[hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()] = source
        return self._run(source, int(count), rest)

    def _run(self, source: bytes, count: int, rest: tuple[bytes, ...]) -> Any:
        keys, arguments = RUNTIME.table_from(rest[:count]), RUNTIME.table_from(rest[count:])
        reply = PROTECTED(compiled(source), self._redis, keys, arguments)
        if self._defect is not None:  # the script may have taken it for an error of the server
            raise self._defect
        return _from_lua(reply)

    def _send(self, *parts: Any) -> Any:
        try:
            return _to_lua(
                self.execute(*[part if type(part) is bytes else b"%.17g" % part for part in parts])
            )
        except RedisError as error:
            return RUNTIME.table_from({b"err": str(error).encode()})
        except Exception as defect:
            self._defect = defect
            raise

    # keys

    def _get(self, key: bytes, kind: type, *, create: bool = False) -> Any:
        if key in self.ends and self.ends[key] <= self._ms():
            del self.ends[key], self.values[key]
        value = self.values.get(key)
        if value is None:
            value = kind()
            if create:
                self.values[key] = value
        if type(value) is not kind:
            raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def _ms(self) -> float:
        return int(self.clock.now * 1000)

    def _tidy(self, key: bytes) -> None:
        if not self.values.get(key, True):
            self.do_del(key)

    def _has(self, key: bytes) -> bool:
        if key in self.ends and self.ends[key] <= self._ms():
            self.do_del(key)
        return key in self.values

    def do_type(self, key: bytes) -> Status:
        """TYPE."""
        return TYPES[type(self.values[key])] if self._has(key) else Status(b"none")

    def do_exists(self, *keys: bytes) -> int:
        """EXISTS."""
        return sum(self._has(key) for key in keys)

    def do_del(self, *keys: bytes) -> int:
        """DEL."""
        for key in keys:
            self.ends.pop(key, None)
        return sum(self.values.pop(key, None) is not None for key in keys)

    def do_pttl(self, key: bytes) -> int:
        """PTTL."""
        if not self._has(key):
            return -2
        return int(self.ends[key] - self._ms()) if key in self.ends else -1

    def do_pexpire(self, key: bytes, ms: bytes) -> int:
        """PEXPIRE."""
        if not self._has(key):
            return 0
        self.ends[key] = self._ms() + int(float(ms))
        return 1

    def do_time(self) -> list[bytes]:
        """TIME."""
        micros = int(self.clock.now * 1_000_000)
        return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]

    # strings

    def do_get(self, key: bytes) -> bytes | None:
        """GET."""
        return self._get(key, bytes) if self._has(key) else None

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        """SET with NX, XX, GET, KEEPTTL and PX."""
        before = self.do_get(key) if b"GET" in options else None
        wants_key = {b"NX": False, b"XX": True}
        if any(self._has(key) is not wants for option, wants in wants_key.items() if option in options):
            return before
        self.values[key] = value
        if b"KEEPTTL" not in options:
            self.ends.pop(key, None)
        if b"PX" in options:
            self.do_pexpire(key, options[options.index(b"PX") + 1])
        return before if b"GET" in options else Status(b"OK")

    def do_incrby(self, key: bytes, more: bytes) -> int:
        """INCRBY."""
        self.values[key] = b"%d" % (int(self.do_get(key) or 0) + int(more))
        return int(self.values[key])

    def do_incr(self, key: bytes) -> int:
        """INCR."""
        return self.do_incrby(key, b"1")

    def do_decr(self, key: bytes) -> int:
        """DECR."""
        return self.do_incrby(key, b"-1")

    # hashes

    def do_hset(self, key: bytes, *pairs: bytes) -> int:
        """HSET."""
        fields = self._get(key, dict, create=True)
        before = len(fields)
        fields.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(fields) - before

    def do_hget(self, key: bytes, field: bytes) -> bytes | None:
        """HGET."""
        return self._get(key, dict).get(field)  # type: ignore[no-any-return]

    def do_hdel(self, key: bytes, field: bytes) -> int:
        """HDEL."""
        found = self._get(key, dict).pop(field, None) is not None
        self._tidy(key)
        return int(found)

    def do_hexists(self, key: bytes, field: bytes) -> int:
        """HEXISTS."""
        return int(field in self._get(key, dict))

    def do_hkeys(self, key: bytes) -> list[bytes]:
        """HKEYS."""
        return list(self._get(key, dict))

    def do_hgetall(self, key: bytes) -> list[bytes]:
        """HGETALL."""
        return [part for pair in self._get(key, dict).items() for part in pair]

    def do_hlen(self, key: bytes) -> int:
        """HLEN."""
        return len(self._get(key, dict))

    # lists

    def do_rpush(self, key: bytes, item: bytes) -> int:
        """RPUSH."""
        self._get(key, list, create=True).append(item)
        return len(self.values[key])

    def do_lpop(self, key: bytes) -> bytes | None:
        """LPOP."""
        items = self._get(key, list)
        item = items.pop(0) if items else None
        self._tidy(key)
        return item

    def do_lindex(self, key: bytes, index: bytes) -> bytes | None:
        """LINDEX."""
        items = self._get(key, list)
        return items[int(index)] if items else None

    def do_lpos(self, key: bytes, item: bytes) -> int | None:
        """LPOS."""
        items = self._get(key, list)
        return items.index(item) if item in items else None

    def do_llen(self, key: bytes) -> int:
        """LLEN."""
        return len(self._get(key, list))

    def do_lrem(self, key: bytes, most: bytes, item: bytes) -> int:
        """LREM of all (0) or of so many from the head."""
        items: list[bytes] = self._get(key, list)
        count = min(items.count(item), int(most) or len(items))
        for _ in range(count):
            items.remove(item)
        self._tidy(key)
        return count

    def do_lrange(self, key: bytes, _: bytes, __: bytes) -> list[bytes]:
        """LRANGE of all."""
        return list(self._get(key, list))

    # sorted sets: a dict of scores, under a type of its own

    def do_zadd(self, key: bytes, *rest: bytes) -> int:
        """ZADD with NX, GT and CH."""
        options = set(takewhile(ZADD_OPTIONS.__contains__, rest))
        pairs = rest[len(options) :]
        scores = self._get(key, Scores, create=True)
        before = dict(scores)
        for score, member in zip(map(float, pairs[::2]), pairs[1::2], strict=True):
            is_kept = b"NX" in options or (b"GT" in options and scores.get(member, -math.inf) >= score)
            if not (member in scores and is_kept):
                scores[member] = score
        changed = {member for member in scores if scores[member] != before.get(member)}
        self._note_minted(scores, changed)
        return len(changed) if b"CH" in options else len(scores) - len(before)

    def _note_minted(self, scores: Scores, changed: set[bytes]) -> None:
        """A token is minted where the index's last one, `~`, rises together with an entry: see token.lua."""
        for member in changed - {LAST} if LAST in changed else ():
            if scores[member] == scores[LAST]:
                self.minted[member].add(int(scores[member]))

    def do_zrem(self, key: bytes, member: bytes) -> int:
        """ZREM."""
        found = self._get(key, Scores).pop(member, None) is not None
        self._tidy(key)
        return int(found)

    def do_zcard(self, key: bytes) -> int:
        """ZCARD."""
        return len(self._get(key, Scores))

    def do_zscore(self, key: bytes, member: bytes) -> bytes | None:
        """ZSCORE."""
        score = self._get(key, Scores).get(member)
        return None if score is None else b"%.17g" % score

    def do_zincrby(self, key: bytes, more: bytes, member: bytes) -> bytes:
        """ZINCRBY."""
        scores = self._get(key, Scores, create=True)
        scores[member] = scores.get(member, 0.0) + float(more)
        return b"%.17g" % scores[member]

    def do_zrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> list[bytes]:
        """ZRANGE by rank."""
        ranked = sorted(self._get(key, Scores).items(), key=lambda pair: (pair[1], pair[0]))
        chosen = ranked[int(first) : int(last) + 1 or None]
        if not options:
            return [member for member, _ in chosen]
        return [part for member, score in chosen for part in (member, b"%.17g" % score)]

    def do_zremrangebyscore(self, key: bytes, _: bytes, most: bytes) -> int:
        """ZREMRANGEBYSCORE from -inf."""
        scores = self._get(key, Scores)
        ended = [member for member, score in scores.items() if score <= float(most)]
        for member in ended:
            del scores[member]
        self._tidy(key)
        return len(ended)

    # messages, replicas

    def do_publish(self, channel: bytes, payload: bytes) -> int:
        """PUBLISH."""
        listening = list(self.listeners[channel])
        for listener in listening:
            listener.hear([b"message", channel, payload])
        return len(listening)

    def do_spublish(self, channel: bytes, payload: bytes) -> int:
        """SPUBLISH: without subscribers here."""
        return 0

    def do_pubsub(self, _: bytes, channel: bytes) -> list[Any]:
        """PUBSUB NUMSUB."""
        return [channel, len(self.listeners[channel])]

    def do_cluster(self, _: bytes) -> list[Any]:
        """CLUSTER SLOTS: the second server has them all."""
        return [[0, 16383, [b"model", 6380]]]

    def do_asking(self) -> Status:
        """ASKING."""
        return Status(b"OK")

    def do_role(self) -> list[Any]:
        """ROLE."""
        return [b"master", 0, [[b"replica", b"6379", b"0"]] if self.replicas else []]

    def do_wait(self, wanted: bytes, _: bytes) -> int:
        """WAIT."""
        return min(self.replicas, int(wanted))


class Scores(dict):
    """A sorted set."""


TYPES: dict[type, Status] = {
    bytes: Status(b"string"),
    dict: Status(b"hash"),
    list: Status(b"list"),
    Scores: Status(b"zset"),
}
ZADD_OPTIONS = {b"NX", b"GT", b"CH"}
LAST = b"~"


def _to_lua(reply: Any) -> Any:
    if reply is None:
        return False
    if isinstance(reply, Status):
        return RUNTIME.table_from({b"ok": bytes(reply)})
    if isinstance(reply, list):
        return RUNTIME.table_from([_to_lua(each) for each in reply])
    return reply


def _from_lua(result: Any) -> Any:
    if lua.lua_type(result) == "table":
        if result[b"err"] is not None:
            raise ResponseError(result[b"err"].decode())
        if result[b"ok"] is not None:
            return Status(result[b"ok"])
        return [_from_lua(result[i]) for i in range(1, len(result) + 1)]
    if isinstance(result, bool):
        return 1 if result else None
    return int(result) if isinstance(result, float) else result
