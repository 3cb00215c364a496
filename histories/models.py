"""What is judged: operations and their intervals, models of the locks, and a checker where Go isn't there.

The same models are in Go beside Porcupine (`histories/checker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

FOREVER: Final = 1 << 62
"""The return of an operation whose end was never seen."""

MOST: Final = 200_000
"""States that the checker here looks at before it gives up."""

State = Any
Step = Callable[["State", "Operation"], "State | None"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a history; its effect lies somewhere between its call and its return.

    Attributes:
        action: acquire, held (the owner was confirmed: `ensure_held`, an extension), end (a release, or the
            end of a lease), section (a read of the register and a write of one more), forbid (a force release
            advances the fence).
        call: nanoseconds of the monotonic clock that all hosts share.
        back: when it returned.
        owner: the identity of the hold.
        token: the fencing token; 0 = none.
        value: what a section has read.
        mode: read or write.
        maybe: nothing says whether it took effect; such an operation returns never.
    """

    action: str
    call: int
    back: int
    owner: str = ""
    token: int = 0
    value: int = 0
    mode: str = ""
    maybe: bool = False


def lock(state: tuple[str, int], operation: Operation) -> tuple[str, int] | None:
    """Step a lock with leases: the holder, and the highest token."""
    holder, token = state
    if operation.action == "acquire":
        rises = not operation.token or operation.token > token
        return (operation.owner, operation.token or token) if not holder and rises else None
    if holder != operation.owner:
        return None
    return ("", token) if operation.action == "end" else state


def semaphore(permits: int) -> Step:
    """Return the step of a semaphore: the set of those who hold a permit."""

    def step(state: frozenset[str], operation: Operation) -> frozenset[str] | None:
        if operation.action == "acquire":
            return state | {operation.owner} if len(state) < permits else None
        if operation.owner not in state:
            return None
        return state - {operation.owner} if operation.action == "end" else state

    return step


def read_write(state: tuple[str, frozenset[str]], operation: Operation) -> tuple[str, frozenset[str]] | None:
    """Step a read-write lock: its writer, and its readers."""
    writer, readers = state
    owner = operation.owner
    if operation.mode == "write":
        if operation.action == "acquire":
            return (owner, readers) if not writer and not readers else None
        if writer != owner:
            return None
        return ("", readers) if operation.action == "end" else state
    if operation.action == "acquire":
        return (writer, readers | {owner}) if not writer else None
    if owner not in readers:
        return None
    return (writer, readers - {owner}) if operation.action == "end" else state


def register(state: int, operation: Operation) -> int | None:
    """Step the guarded register: a section writes one more than it has read, and has read the last write."""
    if operation.value == state:
        return state + 1
    return state if operation.maybe else None


def fenced(state: tuple[int, int, str], operation: Operation) -> tuple[int, int, str] | None:
    """Step the register behind a fence: its value, the highest token and that token's owner."""
    value, token, owner = state
    if operation.action == "forbid":
        return (value, max(token, operation.token), owner if token > operation.token else "")
    newer = operation.token > token or (operation.token == token and operation.owner == owner)
    if newer and operation.value == value:
        return (value + 1, operation.token, operation.owner)
    return state if operation.maybe else None


MODELS: Final[dict[str, tuple[State, Step]]] = {
    "lock": (("", 0), lock),
    "semaphore": (frozenset(), semaphore(2)),
    "read_write": (("", frozenset()), read_write),
    "register": (0, register),
    "fenced": ((0, 0, ""), fenced),
}
"""The first state of each, and its step: the next state, or None where the operation is impossible."""


def judge(model: str, history: Iterable[Operation]) -> str:
    """Return Ok if some order of the operations, each within its interval, is possible; else Illegal.

    Unknown = `MOST` states have not decided it, as with many operations at a time.
    """
    first, step = MODELS[model]
    operations: Sequence[Operation] = sorted(history, key=lambda operation: operation.call)
    whole = (1 << len(operations)) - 1
    seen, open_ = {(0, first)}, [(0, first)]
    while open_:
        if len(seen) > MOST:
            return "Unknown"
        done, state = open_.pop()
        if done == whole:
            return "Ok"
        for number in _next(operations, done):
            after = step(state, operations[number])
            reached = (done | 1 << number, after)
            if after is not None and reached not in seen:
                seen.add(reached)
                open_.append(reached)
    return "Illegal"


def _next(operations: Sequence[Operation], done: int) -> list[int]:
    """Return the operations that may come next, the first to return last: it is tried first."""
    earliest, found = FOREVER, []
    first = (~done & (done + 1)).bit_length() - 1
    for number in range(first, len(operations)):
        if operations[number].call > earliest:
            break
        if not done >> number & 1:
            found.append(number)
            earliest = min(earliest, operations[number].back)
    possible = (number for number in found if operations[number].call <= earliest)
    return sorted(possible, key=lambda number: -operations[number].back)
