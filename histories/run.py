"""Run operations on systems of lock servers while a nemesis harms them, and have the histories judged.

python -m histories.run                                            every system under every nemesis
python -m histories.run --systems redis,etcd --nemeses frozen-client --seconds 60 --seed 7
python -m histories.run --minutes 54                               all cells within this time, alike long
python -m histories.run --wrong all                                with each mistake, which must be found
python -m histories.run --json build/histories.json                and keep what was seen
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import psycopg

from histories import checker, hosts, record, table
from histories.client import Config
from histories.models import Operation, judge
from histories.nemeses import NEMESES, Scene, applies
from histories.servers import ACCOUNT, until, with_clock
from histories.systems import LEASE, SYSTEMS, PostgresServer, System, entry

FAULT: Final = 2.4 * LEASE
REST: Final = 2.0
AROUND: Final = 9.0
"""Seconds that a cell takes beside its faults: clients start and end, and what they saw is judged."""


class ClientProcess:
    """A client's process, which is started again after it was killed."""

    def __init__(self, host: str, config: Path, seed: int, log: IO[bytes]) -> None:
        self.host, self.config, self.seed, self.log = host, config, seed, log
        self.start()

    def start(self) -> None:
        """Start it."""
        command = [sys.executable, "-m", "histories.client", str(self.config), self.host, str(self.seed)]
        self.process = subprocess.Popen(
            with_clock(self.host, command), stdin=subprocess.PIPE, stdout=self.log, stderr=self.log
        )

    def kill(self) -> None:
        """See `Frozen`."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """See `Frozen`."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """See `Frozen`."""
        self.process.send_signal(signal.SIGCONT)

    def revive(self) -> None:
        """Start it again if it was killed, from another seed."""
        if self.process.poll() is not None:
            self.seed += 1000
            self.start()

    def tell_to_stop(self) -> None:
        """Have it end once its threads are done with what they do."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self, within: float) -> None:
        """Wait for its end; kill it if it takes too long."""
        try:
            self.process.wait(max(0.1, within))
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass
class Cell:
    """What was seen of one system under one nemesis.

    Attributes:
        verdicts: by what the lock's name begins with: Ok, Illegal, Unknown (no verdict in a minute), or
            "not judged".
        faults: what the nemesis chose, in order; the same seed has the same choices drawn.
    """

    system: str
    nemesis: str
    seed: int
    seconds: float
    wrong: str
    verdicts: dict[str, str]
    figures: dict[str, Any]
    faults: list[str] = field(default_factory=list)

    def violations(self, *kinds: str) -> list[str]:
        """Return those of the histories that are impossible."""
        return [kind for kind in kinds if self.verdicts.get(kind) == "Illegal"]

    def troubles(self) -> list[str]:
        """Return what should not be: a promise that was broken, or a mistake that wasn't found."""
        place = f"{self.system} under {self.nemesis}"
        if self.wrong:
            found = self.violations(*table.MISTAKES[self.wrong].kinds)
            return [] if found else [f"{place}: the mistake {self.wrong!r} was not found"]
        broken = self.violations(*SYSTEMS[self.system].promises)
        return [f"{place}: {kind} is promised, and its history is impossible" for kind in broken]

    def line(self) -> str:
        """Return what is printed of it."""
        found = self.violations(*record.MODELS)
        undecided = sorted({said for said in self.verdicts.values() if said not in ("Ok", "Illegal")})
        said = (
            [f"impossible: {', '.join(found)}"] if found else [] if undecided else ["every history possible"]
        )
        figures = self.figures
        return (
            f"{self.system:10} {self.wrong or self.nemesis:17} {figures['operations']:6} operations,"
            f" granted in {figures['availability']:4.0%} of the seconds,"
            f" next holder within {figures['next_holder']:4.1f} s; {'; '.join(said + undecided)}"
            + "".join(f"\n{'':29}{fault}" for fault in self.faults)
        )


class Plan:
    """How long each cell lasts: what is given, or an even share of the time that is left.

    A cell that came to its end late makes the later ones shorter, so the whole stays within its time. Each
    has one fault at least.
    """

    def __init__(self, seconds: float, minutes: float | None, cells: int) -> None:
        self.seconds, self.left = seconds, cells
        self.end = None if minutes is None else time.monotonic() + 60 * minutes

    def next(self) -> float:
        """Return for how many seconds the next cell begins faults."""
        share = None if self.end is None else (self.end - time.monotonic()) / max(1, self.left)
        self.left -= 1
        return self.seconds if share is None else max(0.1, share - AROUND - FAULT - REST)


class Runner:
    """The hosts, the judge's database and the checker of a run."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed, self.plan, self.count = seed, plan, 0
        self.not_judged: list[str] = []
        hosts.up()
        hosts.enter("control")
        hosts.HOME.mkdir(parents=True, exist_ok=True)
        self.program = checker.build(hosts.HOME) if checker.go() else None
        self.judge = PostgresServer("judge", max_connections=300)
        self.judge.create()

    def close(self) -> None:
        """Remove everything."""
        hosts.down()

    def config(self, system: System, cell: str, log: Path, wrong: str) -> Config:
        """Return the clients' configuration."""
        databases = {"default": entry("judge")} | system.databases()
        return Config(system.locking(), databases, system.abilities, cell, str(log), wrong)

    def run(self, name: str, cells: Iterable[tuple[str, str]]) -> Iterable[Cell]:
        """Run one system under each nemesis, with its mistake; one that doesn't come back is made afresh."""
        system: System | None = None
        try:
            for nemesis, wrong in cells:
                seconds = self.plan.next()
                if system is None:
                    system = SYSTEMS[name]()
                    system.start()
                if not applies(nemesis, system) or (name, wrong) in table.NO_WAY:
                    continue
                try:
                    yield self.cell(name, system, nemesis, wrong, seconds)
                except Exception as error:  # the other cells are still to be seen
                    self.not_judged.append(f"{name} under {nemesis} was not judged: {error!r}")
                    print(self.not_judged[-1], flush=True)
                    system.stop()
                    system = None
        finally:
            if system is not None:
                system.stop()

    def cell(self, name: str, system: System, nemesis: str, wrong: str, seconds: float) -> Cell:
        """Run clients under one nemesis, and judge what they have logged."""
        self.count += 1
        folder = hosts.HOME / "logs" / "-".join(filter(None, [name, nemesis, wrong, str(self.seed)]))
        folder.mkdir(parents=True)
        config = self.config(system, str(self.count), folder, wrong)
        config.write(folder / "config.json")
        self._make_registers(config, folder / "config.json")
        chance = random.Random(f"{self.seed} {name} {nemesis}")  # noqa: S311 - a test's

        def found() -> bool:
            said = self.verdicts(record.histories(record.read(folder)))
            return any(said.get(kind) == "Illegal" for kind in table.MISTAKES[wrong].kinds)

        begin, end = self._harm(system, nemesis, folder, chance, seconds, found if wrong else lambda: False)
        seen = record.read(folder)
        figures = asdict(record.figures(seen, begin, end))
        verdicts = self.verdicts(record.histories(seen))
        faults = [json.loads(line)["chosen"] for line in (folder / "faults.jsonl").open()]
        seconds = round((end - begin) / 1e9, 1)
        return Cell(name, nemesis, self.seed, seconds, wrong, verdicts, figures, faults)

    def _make_registers(self, config: Config, path: Path) -> None:
        command = [sys.executable, "-m", "histories.client", str(path), "migrate"]
        if self.count == 1 or "locks" in config.databases or config.abilities.in_transaction:
            subprocess.run(command, check=True)
        where = config.databases["default"]
        place = f"host={where['HOST']} user={ACCOUNT} dbname=postgres target_session_attrs=read-write"
        with psycopg.connect(place, autocommit=True) as connection:
            for kind in record.REGISTERS:
                name = f"{kind}-{config.cell}"
                connection.execute("INSERT INTO guarded VALUES (%s, 0)", [name])

    def _harm(
        self,
        system: System,
        nemesis: str,
        folder: Path,
        chance: random.Random,
        seconds: float,
        is_enough: Callable[[], bool],
    ) -> tuple[int, int]:
        """Run the clients and the nemesis; return when the first fault could begin, and when all ended."""
        path = folder / "config.json"
        with (folder / "errors.log").open("ab") as errors:
            clients = [ClientProcess(host, path, chance.randrange(1000), errors) for host in hosts.CLIENTS]
            try:
                until(lambda: len(list(folder.glob("c*.jsonl"))) == len(clients), "clients that work")
                time.sleep(1)
                begin = time.monotonic_ns()
                while time.monotonic_ns() - begin < seconds * 1e9:
                    self._fault(Scene(system, clients, chance, folder), nemesis)
                    for client in clients:
                        client.revive()
                    time.sleep(REST)
                    if is_enough():
                        break
                end = time.monotonic_ns()
                for client in clients:
                    client.tell_to_stop()
                deadline = time.monotonic() + 12
                for client in clients:
                    client.end(deadline - time.monotonic())
            finally:
                hosts.heal()
                for client in clients:
                    client.kill()
        return begin, end

    @staticmethod
    def _fault(scene: Scene, nemesis: str) -> None:
        """Begin the fault, hold it, end it, and make the system whole."""
        fault = NEMESES[nemesis](scene)
        facts: dict[str, object] = {"nemesis": nemesis, "begin": time.monotonic_ns()}
        facts["chosen"] = next(fault)
        time.sleep(FAULT)
        next(fault, None)
        with (scene.log / "faults.jsonl").open("a") as log:
            log.write(json.dumps(facts | {"end": time.monotonic_ns()}) + "\n")
        scene.system.restore()

    def verdicts(self, histories: dict[checker.History, list[Operation]]) -> dict[str, str]:
        """Judge each history: by Porcupine; without Go by the checker in Python."""
        if self.program is not None:
            lines = ((history, one) for history, operations in histories.items() for one in operations)
            said = checker.judge(self.program, lines)
            return {history.key: said.get(history, "not judged") for history in histories}
        return {history.key: judge(history.model, operations) for history, operations in histories.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--nemeses", default=",".join(NEMESES))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each system under each nemesis")
    parser.add_argument("--minutes", type=float, help="of the whole run, instead of --seconds")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 10**6))
    parser.add_argument("--wrong", default="", choices=["", "all", *table.MISTAKES])
    parser.add_argument("--json", type=Path, help="a file for what was seen; cells that it has are replaced")
    parser.add_argument("--keep", type=Path, help="a folder for the logs")
    given = parser.parse_args(arguments)
    if reason := hosts.obstacle():
        raise SystemExit(f"histories: {reason}")
    print(f"seed {given.seed}", flush=True)
    mistakes = list(table.MISTAKES) if given.wrong == "all" else [given.wrong]
    cells = (
        [(table.MISTAKES[wrong].nemesis, wrong) for wrong in mistakes]
        if given.wrong
        else [(nemesis, "") for nemesis in given.nemeses.split(",")]
    )
    seen: list[Cell] = []
    plan = Plan(given.seconds, given.minutes, len(cells) * len(given.systems.split(",")))
    try:
        runner = Runner(given.seed, plan)
    except hosts.HostsError as error:
        raise SystemExit(f"histories: {error}") from None
    try:
        for name in given.systems.split(","):
            for cell in runner.run(name, cells):
                print(cell.line(), flush=True)
                seen.append(cell)
                if given.json:
                    keep(given.json, cell)
    finally:
        if given.keep:
            shutil.copytree(hosts.HOME / "logs", given.keep, dirs_exist_ok=True)
        runner.close()
        shown = list(map(asdict, seen))
        print("", table.mistakes(shown) if given.wrong else table.tables(shown), sep="\n")
    if troubles := [*runner.not_judged, *(trouble for cell in seen for trouble in cell.troubles())]:
        raise SystemExit("\n".join(troubles))


def keep(path: Path, cell: Cell) -> None:
    """Write a cell into the file, in the place of the one that was seen before."""
    cells = [Cell(**each) for each in json.loads(path.read_text())] if path.exists() else []
    where = (cell.system, cell.nemesis, cell.wrong)
    cells = [each for each in cells if (each.system, each.nemesis, each.wrong) != where]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(each)) for each in [*cells, cell])
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
