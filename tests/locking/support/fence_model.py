"""A little model of lease, fence and database: every interleaving of two holders, every fault, every mistake.

Two processes want to sell the one unit there is. Each takes the lease, runs its transactions, and never looks
at the clock: a lease may end at any moment without its holder's knowing (a pause), Redis may lose everything
(FLUSHALL), or fall back to an older copy of itself (a failover), and then mint a number twice, or lower ones
than before (its clock ran ahead and it lost its data). The database keeps rows, row locks and snapshots as
PostgreSQL does. `explore` walks through every order of steps and returns one in which two units were sold, or
None.

The sales are rows that are added, not a counter that is changed: nothing but the fence makes the database
notice that two of them don't go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

READ_COMMITTED, REPEATABLE_READ = "read committed", "repeatable read"

Program = tuple[str, ...]

ONE: Program = ("acquire", "begin", "fence", "read", "sell", "commit")
"""All in one transaction."""
TWO: Program = ("acquire", "begin", "fence", "read", "commit", "begin", "fence", "sell", "commit")
"""What was decided in one transaction is done in the next, under the same token."""
WARM: Program = ("acquire", "begin", "fence", "commit", "begin", "fence", "read", "sell", "commit")
"""The token was used before: the fence row has it already."""

PROGRAMS = {"one": ONE, "two": TWO, "warm": WARM}


@dataclass(frozen=True)
class Rules:
    """What is checked how; the defaults are the fence as it is, everything else is a mutant."""

    fenced: bool = True
    compare: str = "token and owner"
    place: str = "first"
    in_savepoint: bool = False
    for_update: bool = False

    def program(self, steps: Program) -> Program:
        """Put the fence where this mutant has it."""
        if not self.fenced:
            return tuple(step for step in steps if step != "fence")
        if self.place == "after the read":
            return _moved_behind(steps, "read")
        if self.place == "last":
            return _moved_behind(steps, "sell")
        return steps

    def allows(self, stored: tuple[int, int], token: int, owner: int) -> bool:
        """Whether a holder may pass."""
        if self.compare == "<=":
            return stored[0] <= token
        if self.compare == "<":
            return stored[0] < token
        return stored[0] < token or stored == (token, owner)


def _moved_behind(steps: Program, mark: str) -> Program:
    """Move the fence of each transaction behind `mark`, where it has one."""
    moved: list[str] = []
    waiting = False
    for step in steps:
        if step == "fence":
            waiting = True
            continue
        if step == "commit" and waiting:
            moved.append("fence")
            waiting = False
        moved.append(step)
        if step == mark and waiting:
            moved.append("fence")
            waiting = False
    return tuple(moved)


@dataclass(frozen=True)
class Process:
    """One holder: where it is in its program, and what it believes."""

    at: int = 0
    token: int = 0
    snapshot: tuple[int, int] | None = None
    """In a transaction: the sales and the version of the fence row that its snapshot shows."""
    asked: bool = False
    """Its fence statement was sent, and may be waiting for a row lock."""
    has_row: bool = False
    saw: int = 0
    sold: int = 0
    wrote_fence: tuple[int, int] | None = None
    ended: str = ""


@dataclass(frozen=True)
class World:
    """Redis, the database, and the processes."""

    holder: int = -1
    counter: int = 0
    replica: tuple[int, int] = (-1, 0)
    faults: int = 0
    sales: int = 0
    fence: tuple[int, int] = (0, -1)
    version: int = 0
    processes: tuple[Process, ...] = (Process(), Process())

    def having(self, number: int, process: Process, **changes: object) -> World:
        """Return this world with one process changed."""
        processes = (*self.processes[:number], process, *self.processes[number + 1 :])
        return replace(self, processes=processes, **changes)  # type: ignore[arg-type]


@dataclass
class Model:
    """The rules, the isolation level, the processes' program, and how many faults may happen."""

    rules: Rules = field(default_factory=Rules)
    isolation: str = READ_COMMITTED
    program: Program = ONE
    faults: int = 3
    start: World = field(default_factory=World)

    def __post_init__(self) -> None:
        self.steps = self.rules.program(self.program)

    def next(self, world: World) -> Iterator[tuple[str, World]]:
        """Return everything that may happen now."""
        for number, process in enumerate(world.processes):
            if not process.ended and process.at < len(self.steps):
                yield from self._step(world, number, process)
        if world.faults < self.faults:
            yield from self._faults(replace(world, faults=world.faults + 1))

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        if world.holder != -1:
            yield "the lease ends", replace(world, holder=-1)
        if (world.holder, world.counter) != (-1, 0):
            yield "FLUSHALL", replace(world, holder=-1, counter=0)
        if (world.holder, world.counter) != world.replica:
            yield "failover", replace(world, holder=world.replica[0], counter=world.replica[1])
            yield "the replica catches up", replace(world, replica=(world.holder, world.counter))

    def _step(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        step = self.steps[process.at]
        done = replace(process, at=process.at + 1)
        if step == "acquire":
            if world.holder == -1:
                token = world.counter + 1
                yield (
                    f"{number} acquires {token}",
                    world.having(number, replace(done, token=token), holder=number, counter=token),
                )
        elif step == "begin":
            yield f"{number} begins", world.having(number, replace(done, snapshot=None))
        elif step == "fence":
            yield from self._fence(world, number, process)
        elif step == "read":
            snapshot = process.snapshot or self._snapshot(world)
            saw = snapshot[0] if self.isolation == REPEATABLE_READ else world.sales
            yield f"{number} reads {saw}", world.having(number, replace(done, saw=saw, snapshot=snapshot))
        elif step == "sell":
            sold = 1 if process.saw == 0 else 0
            yield f"{number} sells {sold}", world.having(number, replace(done, sold=sold))
        else:
            yield f"{number} commits", self._committed(world, number, done)

    def _snapshot(self, world: World) -> tuple[int, int]:
        return world.sales, world.version

    def _fence(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """The statement takes its snapshot as it begins, and then waits for the row."""
        if not process.asked:
            snapshot = process.snapshot or self._snapshot(world)
            yield (
                f"{number} asks for the fence",
                world.having(number, replace(process, asked=True, snapshot=snapshot)),
            )
            return
        if any(other.has_row for other in world.processes if other is not process):
            return
        if self.isolation == REPEATABLE_READ and process.snapshot and process.snapshot[1] != world.version:
            yield f"{number} gets 40001", world.having(number, _undone(process, "overtaken"))
            return
        stored = process.wrote_fence or world.fence
        if not self.rules.allows(stored, process.token, number):
            yield f"{number} is stale", world.having(number, _undone(process, "stale"))
            return
        yield f"{number} passes the fence", world.having(number, self._passed(process, stored, number))

    def _passed(self, process: Process, stored: tuple[int, int], number: int) -> Process:
        done = replace(process, at=process.at + 1, asked=False)
        if self.rules.in_savepoint:
            return done  # rolled back with its savepoint: neither the row lock nor the number stays
        unchanged = self.rules.for_update and stored == (process.token, number)
        return replace(done, has_row=True, wrote_fence=None if unchanged else (process.token, number))

    def _committed(self, world: World, number: int, process: Process) -> World:
        after = replace(process, snapshot=None, has_row=False, sold=0, wrote_fence=None)
        changes: dict[str, object] = {"sales": world.sales + process.sold}
        if process.wrote_fence is not None:
            changes |= {"fence": process.wrote_fence, "version": world.version + 1}
        if process.at == len(self.steps):
            after = replace(after, ended="done")
        return world.having(number, after, **changes)


def _undone(process: Process, ended: str) -> Process:
    return replace(process, ended=ended, snapshot=None, asked=False, has_row=False, sold=0, wrote_fence=None)


@dataclass(frozen=True)
class Finding:
    """What `explore` found: how many worlds there are, and a way to an oversell, if any."""

    worlds: int
    oversell: tuple[str, ...] | None


def explore(model: Model) -> Finding:
    """Walk through every order of steps and faults."""
    start = model.start
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    waiting = [start]
    while waiting:
        world = waiting.pop()
        if world.sales > 1:
            return Finding(len(came_from), _path(came_from, world))
        for what, after in model.next(world):
            if after not in came_from:
                came_from[after] = (world, what)
                waiting.append(after)
    return Finding(len(came_from), None)


def alone(model: Model) -> str:
    """Run the first process by itself, without a fault, and return the last thing that it did."""
    quiet, world, last = replace(model, faults=0), model.start, ""
    while steps := [step for step in quiet.next(world) if step[0].startswith("0 ")]:
        ((last, world),) = steps
    return last


def _path(came_from: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    path: list[str] = []
    while (step := came_from[world]) is not None:
        world, what = step
        path.append(what)
    return tuple(reversed(path))
