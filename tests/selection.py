"""Which tests `make test` runs, and which wait for `make test-all`: one rule, by what a test is.

A test waits if it is of a kind in `KINDS`, by its address or by a server that it needs, or if it has the mark
`whole`. The kinds' smoke tests don't: each engine, and each way to test, is tried by every `make test`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass

import pytest

EXPLORE_ALL = os.environ.get("EXPLORE") == "all"
"""`EXPLORE=all` has the explorers try everything, which takes hours; else they try what takes minutes."""


@dataclass(frozen=True)
class Kind:
    """Tests that wait for `make test-all`.

    Attributes:
        name: what is printed.
        address: a regular expression that is found in the address of a test of the kind.
        smoke: one that is found in the addresses of those that don't wait.
        fixture: how the fixtures begin that have the kind's server.
    """

    name: str
    address: str
    smoke: str
    fixture: str = "-"

    def has(self, address: str, fixtures: list[str]) -> bool:
        """Tell whether a test is of this kind, by its address or by what it asks for."""
        return bool(re.search(self.address, address)) or any(map(self.begins, fixtures))

    def begins(self, fixture: str) -> bool:
        """Tell whether a fixture has this kind's server."""
        return fixture.startswith(self.fixture)

    def keeps(self, address: str) -> bool:
        """Tell whether a test of this kind is run by every `make test`."""
        return bool(re.search(self.smoke, address))


def on(engine: str) -> str:
    """Return the expression of tests with an engine for a parameter; those of the docs have pages."""
    return rf"^(?!tests/docs/).*\[.*{engine}"


CONTRACT = r"test_contract[.]py::.*::test_(fencing|tasks_exclude_each_other)\["

KINDS = (
    Kind("browsers", "/browser/", "test_shop.py::test_a_person_buys"),
    Kind("killed processes",
         "/test_(deaths|async_reserve_crash)[.]py|/test_events[.]py::.*(dies|kills|killed)|pauses_and_kills",
         r"own_order\[row_lock\]|that_kills_its_relay"),
    Kind("faults at each step", "/faults/|/test_explorer[.]py", r"at_every_step\[lock, free-threads\]"),
    Kind("all interleavings", "/test_interleavings[.]py", r"\[(row_lock|lost_update)\]"),
    Kind("strategies of the lesson", r"/lab/test_(sound|broken)_strategies[.]py.*\[",
         r"\[(.*-)?(row_lock|version_cas|redis_lock|lost_update)[-\]]"),
    Kind("mutants", "mutants|a_shop_that_forgets",
         r"refused\[(Grants|Anyone)|keeps_its_socket-lock, free-threads"),
    Kind("races of processes", "/test_(race|runs|oversell_command)[.]py", "test_bad_input_is_refused"),
    Kind("the served shop", "/test_(serve|metrics|http_rush|garbage_collection)[.]py|two_hundred",
         r"test_(it_says|a_wrong_port|a_port_in_use)|serve_shares|there\[row_lock\]|\[half-sent bodies"),
    Kind("servers of their own", "/test_(embedded|servers|read_replica|partitions)[.]py",
         "test_both_answer_after"),
    Kind("projects without a part of Django", "a_project_without", r"without\[(admin app auth.*)?\]"),
    Kind("made from nothing", "/scratch/|/test_(wheel|oscar)[.]py", "test_no_text_points_to_a_page"),
    Kind("Celery's workers", "/worker/", r"test_a_task_runs_under_its_lock\[prefork"),
    Kind("Redisson", "/redisson/", r"test_redisson.py::test_they_exclude_each_other\[4.*-single"),
    Kind("etcd", on("etcd") + "|/test_etcd", CONTRACT + "etcd", "etcd_"),
    Kind("ZooKeeper", on("zookeeper"), CONTRACT + "zookeeper", "zookeeper_"),
    Kind("ensembles", "/ensembles/", "test_options_that_can_t_be_meant|don_t_show_their_secrets"),
    Kind("MariaDB", on("(mariadb|mysql)") + "|/test_mysql", CONTRACT + "database-mariadb", "mariadb_"),
    Kind("Redlock", on("redlock") + "|/test_redlock[.]py", CONTRACT + "redlock|no_majority_is_refused"),
    Kind("Redis Cluster", on("redis-cluster") + "|/[a-z_]*cluster[a-z_]*[.]py",
         CONTRACT + "redis-cluster", "cluster_"),
    Kind("Redis Sentinel", on("redis-sentinel") + "|/test_sentinel", CONTRACT + "redis-sentinel"),
    Kind("other topologies of Redis", "/topologies/",
         "test_a_wrong_setting_is_refused|stays_out_of_the_message"),
    Kind("pgbouncer", "pgbouncer", "test_rows_exclude_through_it"),
)  # fmt: skip


SERVERS = tuple(kind.fixture for kind in KINDS)


def kinds_of(item: pytest.Item) -> list[Kind]:
    """Return the kinds of a test; most tests have none."""
    fixtures = [name for name in getattr(item, "fixturenames", []) if name.startswith(SERVERS)]
    address = item.nodeid
    return [kind for kind in KINDS if kind.has(address, fixtures)]


def left_out_as(item: pytest.Item, kinds: list[Kind]) -> str | None:
    """Return the name of what has `make test` leave a test out, or None if it runs it."""
    if kinds and not any(kind.keeps(item.nodeid) for kind in kinds):
        return kinds[0].name
    return "marked whole" if item.get_closest_marker("whole") else None


def refuse_kinds_without_smoke(kinds: dict[pytest.Item, list[Kind]]) -> None:
    """Stop the run where a kind's smoke test has another name by now, and so would wait as well."""
    smoked = {kind.name for item, its in kinds.items() for kind in its if kind.keeps(item.nodeid)}
    for kind in KINDS:
        if kind.name not in smoked:
            raise pytest.UsageError(
                f"tests/selection.py: no test of {kind.name} is at {kind.smoke!r}; name one that is quick"
            )


class Selecting:
    """The plugin of `--selection`: takes tests out, and says at the end how many and how to have them."""

    def __init__(self, selection: str) -> None:
        self.selection = selection
        self.left_out: dict[str, int] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Take out what the selection doesn't name."""
        kinds = {item: kinds_of(item) for item in items}
        if self.selection == "quick" and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            refuse_kinds_without_smoke(kinds)
        names = {item: left_out_as(item, kinds[item]) for item in items}
        out = {item: name for item, name in names.items() if (name is None) is (self.selection == "rest")}
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=list(out))
        self.left_out = Counter(name or "run by make test" for name in out.values())
        if output := getattr(config, "workeroutput", None):
            output["left_out"] = dict(self.left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Have a worker's counts; each worker has collected the same."""
        self.left_out = getattr(node, "workeroutput", {}).get("left_out", self.left_out)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was left out."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.left_out.items()))
        if kinds and self.selection == "quick":
            terminalreporter.write_line(
                f"Left out: {sum(self.left_out.values())} tests ({kinds}). `make test-all` runs everything; "
                "`.ci/run` installs what that needs."
            )
        elif kinds:
            terminalreporter.write_line(f"Left out: {kinds}.")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--selection`; the commands in the Makefile give it."""
    parser.addoption(
        "--selection",
        choices=["all", "quick", "rest"],
        default="all",
        help="quick: what `make test` runs; rest: what `make test-all` adds to it (tests/selection.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Install the selection."""
    selection = config.getoption("selection")
    if selection != "all":
        config.pluginmanager.register(Selecting(selection), "holdfast-selection")
