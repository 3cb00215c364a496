"""Every name in the documentation exists, and every public name is in the documentation."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands
from django.dispatch import Signal
from django.utils.module_loading import import_string

import locking
from config.selling import STRATEGIES as SELLING
from locking import conf, exceptions, get_lock, locked_transaction, signals
from locking.backends import etcd, redlock, zookeeper
from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import ForceRelease, Kinds, Listing
from locking.backends.database import connection_pool
from locking.backends.database.connection_pool import DEFAULT_TIMEOUT
from locking.backends.redis import topology
from locking.backends.redlock import RedlockBackend
from locking.contrib import groups, opentelemetry, prometheus
from locking.core.kinds import LABELS
from locking.core.lease import State
from locking.inspection.columns import STATES
from locking.testing import pytest_plugin
from locking.transactions.decorator import OPTIONS, Options
from orders.audit import INVARIANTS
from orders.http.openapi import describe
from orders.http.problems import PROBLEM_TYPES
from orders.lab.strategies import STRATEGIES as LESSON
from tests import ROOT
from tests.docs.pages import LIBRARY, PAGES, SHOP, SPOKEN, STOCK, coded, name_of, prose_of, rows, section
from tests.docs.test_blocks import options_of, parser_of, verbs_of
from tests.locking.test_public_names import PUBLIC as EXPORTED

REFERENCE = LIBRARY / "reference"
API = sorted((REFERENCE / "api").glob("*.md"))
DIRECTIVE = re.compile(r"^\.\. auto(?:function|class|exception|data):: ([\w.]+)", re.MULTILINE)
TEXT = {page: page.read_text() for page in PAGES}


def documented() -> list[str]:
    """Return the dotted paths that the reference is made of."""
    return [path for page in API for path in DIRECTIVE.findall(TEXT[page])]


# --- the API ----------------------------------------------------------------------------------------------

PUBLIC = [import_module(name) for name in (*EXPORTED, exceptions.__name__, pytest_plugin.__name__)]
"""The modules of the overview's table, and the two without a row of their own."""


def public_names(module: ModuleType) -> set[str]:
    """Return what a module offers: `__all__`, or what it defines itself without an underscore."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value) or isinstance(value, Signal))
        and getattr(value, "__module__", module.__name__) in (module.__name__, Signal.__module__)
    }


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_what_is_public_is_in_the_reference(module: ModuleType) -> None:
    """Each public name of a public module has an entry, by this path or by that of the package."""
    known = [id(import_string(path)) for path in documented()]
    names = {name for name in public_names(module) if not name.startswith("pytest_")}  # but pytest's hooks
    assert {name for name in names if id(getattr(module, name)) not in known} == set()


@pytest.mark.parametrize("path", documented())
def test_what_is_in_the_reference_exists(path: str) -> None:
    """Each entry of the reference is there, once, and has a docstring."""
    assert documented().count(path) == 1
    found = import_string(path)
    assert found.__doc__ or not inspect.isclass(found)


def test_every_backend_is_in_the_reference() -> None:
    """The classes that `BACKEND` may name are those of the table of abilities and of the API pages."""
    table = rows(section(REFERENCE / "backends" / "index.md", "What each can do"))
    assert {path for row in table for path in coded(row[0])} == backends()
    assert backends() <= set(documented())


def test_what_each_backend_can_do() -> None:
    """The table of abilities is made of the flags and mixins of the classes."""
    page = REFERENCE / "backends" / "index.md"
    shown = {coded(row[0])[0]: row[1:] for row in rows(section(page, "What each can do"))}
    words = {True: "yes", False: "no"}
    assert shown == {path: [words[each] for each in abilities_of(import_string(path))] for path in backends()}


def abilities_of(backend: type[BaseLockBackend]) -> list[bool]:
    """Return which columns of the table an engine has."""
    lists, breaks, kinds = (issubclass(backend, each) for each in (Listing, ForceRelease, Kinds))
    return [backend.supports_fencing, lists, breaks, bool(backend.supports_fairness), kinds]


def backends() -> set[str]:
    """Return the dotted paths of the backends, as their modules export them, but the interface."""
    found = (
        f"locking.backends.{each.name}" for each in iter_modules(import_module("locking.backends").__path__)
    )
    names = {f"{name}.{each}" for name in found for each in getattr(import_module(name), "__all__", ())}
    names.add("locking.backends.memory.MemoryBackend")  # a module that exports more
    return {path for path in names if path.endswith("Backend")} - {"locking.backends.base.BaseLockBackend"}


DOTTED = re.compile(r"`(locking(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
NOT_PYTHON = re.compile(r"locking\.[EWI]\d+|locking\.(?:view|release|extend)_\w+")
"""Ids of checks, and permissions."""


@pytest.mark.parametrize("page", SPOKEN, ids=name_of)
def test_dotted_paths_exist(page: Path) -> None:
    """A dotted path in backticks is a module or something in one, an attribute of a span, or a logger."""
    spans = set(opentelemetry.attributes(signals.LockEvent._make(signals.LockEvent._fields)))
    named = {path for path in DOTTED.findall(TEXT[page]) if not NOT_PYTHON.fullmatch(path)}
    assert [path for path in sorted(named - spans - {signals.events_logger.name}) if not exists(path)] == []


def exists(path: str) -> bool:
    """Return whether a dotted path leads to a module, or through one to an attribute."""
    module, _, rest = path, "", ""
    while module:
        try:
            found: Any = import_module(module)
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            rest = f"{name}.{rest}".strip(".")
            continue
        for name in filter(None, rest.split(".")):
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def test_a_path_that_is_not_there_is_noticed() -> None:
    """A module, a class and an attribute that don't exist differ from those that do."""
    paths = (
        "locking.signals.lock_lost",
        "locking.core.lease.State.HELD",
        "locking.nothing",
        "locking.get_lok",
    )
    assert [exists(path) for path in paths] == [True, True, False, False]


# --- arguments, errors, events ------------------------------------------------------------------------------


def test_the_options_of_the_decorator() -> None:
    """The overview's table and the docstring have each option of `@distributed_lock`, and no others."""
    table = rows(section(REFERENCE / "overview.md", "`@distributed_lock`"))
    listed = {name for row in table for name in coded(row[0])}
    text = inspect.getdoc(locking.distributed_lock) or ""
    explained = set(", ".join(re.findall(r"^    (\w+(?:, \w+)*): ", text, re.MULTILINE)).split(", "))
    assert listed == OPTIONS
    assert explained >= OPTIONS


def test_the_defaults_of_the_decorator() -> None:
    """Where the overview's table shows a value as default, it is the option's."""
    defaults = {field.name: repr(field.default).replace("'", '"') for field in fields(Options)}
    for row in rows(section(REFERENCE / "overview.md", "`@distributed_lock`")):
        names, values = coded(row[0]), coded(row[1])
        if row[1].replace(" ", "") == ",".join(f"`{value}`" for value in values):
            assert [defaults[name] for name in names] == values, names


@pytest.mark.parametrize("function", [get_lock, locked_transaction], ids=lambda function: function.__name__)
def test_the_arguments_of_the_overview(function: Any) -> None:
    """The overview names the arguments of `get_lock` and `locked_transaction`, and no others."""
    shown = re.search(rf"^`{function.__name__}\(([^)]*)\)", TEXT[REFERENCE / "overview.md"], re.MULTILINE)
    assert shown is not None
    assert set(re.findall(r"\w+", shown[1])) == set(arguments_of(function))


def arguments_of(function: Any) -> Iterator[str]:
    """Yield the names of a function's arguments, those of `**options: Unpack[…]` one by one."""
    hints = get_type_hints(inspect.unwrap(function))
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (options,) = get_args(hints[name])
            yield from options.__annotations__
        else:
            yield name


def drawn(kind: type[Exception], indent: str = "") -> Iterator[str]:
    """Yield the lines of a tree of errors."""
    yield indent + kind.__name__
    for child in kind.__subclasses__():
        if child.__module__ == exceptions.__name__:
            yield from drawn(child, indent + "  ")


def test_the_tree_of_errors() -> None:
    """The overview draws the errors as their classes derive from one another."""
    lines = section(REFERENCE / "overview.md", "Errors").splitlines()
    shown = [match[0] for line in lines if (match := re.match(r" *(?:Lock|TooMany|Stale|Backend)\w+", line))]
    assert shown == list(drawn(exceptions.LockError))


def test_the_states_of_a_lease() -> None:
    """The overview and the pages on held locks name the states that there are."""
    (lease,) = [row for row in rows(TEXT[REFERENCE / "overview.md"]) if row[0].startswith("`state`")]
    assert {state.value for state in State} <= set(coded(lease[1]))
    commands = TEXT[REFERENCE / "commands.md"]
    states = [set(coded(row[2])) for row in rows(commands) if row[0] == "`--state`"]
    kinds = [set(coded(row[2])) for row in rows(commands) if row[0] == "`--kind`"]
    assert (states, kinds) == ([set(STATES)], [set(LABELS)])


def test_the_signals_and_their_outcomes() -> None:
    """The page on signals has each signal and each outcome, and the overview each signal."""
    table = rows(TEXT[LIBRARY / "how-to" / "signals.md"])
    assert {row[0].strip("`") for row in table} == {
        name for name in public_names(signals) if name.startswith("lock_")
    }
    assert {name for row in table for name in coded(row[1])} == set(get_args(signals.Outcome))
    overview = set(coded(section(REFERENCE / "overview.md", "Signals and Celery")))
    assert {row[0].strip("`") for row in table} <= overview


def test_the_metrics() -> None:
    """The page on metrics has each of Prometheus' metrics."""
    source = inspect.getsource(prometheus.Meter)
    made = {
        name + ("_total" if kind == "Counter" else "")
        for kind, name in re.findall(r'(Counter|Gauge|Histogram)\(\s*"(\w+)"', source)
    }
    assert {
        name
        for row in rows(TEXT[LIBRARY / "how-to" / "metrics.md"])
        for name in coded(row[0])
        if name.startswith("locking_")
    } == made


# --- settings ---------------------------------------------------------------------------------------------


def default_of(cell: str) -> str:
    """Return the first thing in backticks of a table's cell on a default, or the cell."""
    return (coded(cell) or [cell])[0]


def test_the_keys_of_an_alias() -> None:
    """The page of settings has each key of an alias, and its default; `CACHE` is explained, as it depends."""
    table = {
        coded(row[0])[0]: default_of(row[1])
        for row in rows(TEXT[REFERENCE / "settings.md"])
        if len(row) == 3 and re.fullmatch(r"`[A-Z_]+`", row[0])
    }
    table = {
        key: value
        for key, value in table.items()
        if key not in groups.DEFAULTS and not key.startswith("LOCKING_")
    }
    assert set(table) == set(conf.DEFAULTS)
    for key, value in conf.DEFAULTS.items():
        if key not in ("CACHE", "LOCATION"):  # they depend on one another, and are explained
            assert table[key].strip('"') == (value if isinstance(value, str) else repr(value)), key


def sources(*folders: str) -> Iterator[str]:
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            yield path.read_text()


def test_the_settings_beside_the_aliases() -> None:
    """Every Django setting of this library is on the page of settings, and no other."""
    used = {name for text in sources("locking") for name in re.findall(r"['\"](LOCKING_[A-Z_]+)['\"]", text)}
    named = {
        name for name in coded(TEXT[REFERENCE / "settings.md"]) if re.fullmatch(r"LOCKING_[A-Z_]+", name)
    }
    assert used == named


def test_the_keys_of_the_metrics_setting() -> None:
    """`LOCKING_METRICS` is shown with each of its keys, in the settings and on the page of metrics."""
    for page in (REFERENCE / "settings.md", LIBRARY / "how-to" / "metrics.md"):
        assert all(key in TEXT[page] for key in groups.DEFAULTS)


def test_the_requests_of_the_shop() -> None:
    """The HTTP reference has each request of the OpenAPI document, and no other but the document itself."""
    page = SHOP / "reference" / "http.md"
    shown = {name for row in rows(TEXT[page].partition("\n## ")[0]) for name in coded(row[0])[:1]}
    described = {
        f"{method.upper()} {re.sub('{.*?}', '<id>', path)}"
        for path, operations in describe()["paths"].items()
        for method in operations
    }
    assert shown == described | {"GET /openapi.json"}


def test_the_problems_of_the_shop() -> None:
    """The HTTP reference has each type of problem, and no other."""
    table = rows(section(SHOP / "reference" / "http.md", "Problems"))
    assert {slug for row in table for slug in coded(row[1])} == {kind.slug for kind in PROBLEM_TYPES}


def test_the_values_of_the_pytest_plugin() -> None:
    """The page on testing has the places that the plugin knows."""
    table = {coded(row[0])[0] for row in rows(TEXT[LIBRARY / "how-to" / "testing.md"]) if coded(row[0])}
    assert set(pytest_plugin.PLACES) <= table


# --- checks, commands, strategies, files ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "folder", "app"),
    [
        (REFERENCE / "checks.md", "locking", "locking"),
        (STOCK / "reference" / "checks.md", "inventory", "inventory"),
        (SHOP / "reference" / "checks.md", "orders", "orders"),
    ],
    ids=["library", "inventory", "orders"],
)
def test_the_checks(page: Path, folder: str, app: str) -> None:
    """Each id of a check has a heading, and each heading an id."""
    used = {
        f"{app}.{found}"
        for text in sources(folder)
        for found in re.findall(r'"(?:locking\.|inventory\.|orders\.)?([EWI]\d{3})"', text)
    }
    named = re.findall(
        rf"`({app}\.[EWI]\d+)`", "\n".join(re.findall(r"^(?:#+ |\|)[^|]+", TEXT[page], re.MULTILINE))
    )
    assert sorted(named) == sorted(used)


@pytest.mark.parametrize("page", SPOKEN, ids=name_of)
def test_ids_of_checks_exist(page: Path) -> None:
    """A check that a page names is one that there is."""
    known = set(
        re.findall(
            r"`((?:locking|inventory|orders)\.[EWI]\d+)`",
            "".join(TEXT[part / "reference" / "checks.md"] for part in (LIBRARY, STOCK, SHOP)),
        )
    )
    assert set(re.findall(r"\b((?:locking|inventory|orders)\.[EWI]\d+)", TEXT[page])) <= known


DJANGO_S = {
    "-h",
    "--help",
    "--version",
    "-v",
    "--verbosity",
    "--settings",
    "--pythonpath",
    "--traceback",
    "--no-color",
    "--force-color",
    "--skip-checks",
}


def command_sections() -> list[tuple[Path, str, str]]:
    """Return page, command line and text of each section about a command of manage.py."""
    pages = (REFERENCE / "commands.md", SHOP / "reference" / "commands.md")
    return [
        (page, *match)
        for page in pages
        for match in re.findall(
            r"^## `manage\.py ([^`]+)`\n(.*?)(?=^## |\Z)", TEXT[page], re.MULTILINE | re.DOTALL
        )
    ]


@pytest.mark.parametrize(
    ("page", "line", "text"),
    command_sections(),
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_the_options_of_a_command(page: Path, line: str, text: str) -> None:
    """The table below a command has its options, and no others."""
    words = line.split()
    parser = parser_of(words[0])
    parser = verbs_of(parser)[words[1]] if verbs_of(parser) else parser
    shown = {option.split()[0] for row in rows(text) for option in coded(row[0])}
    if words[1:2] in (["watch"], ["top"], ["release"]):
        shown |= options_of(verbs_of(parser_of("locks"))["list"]) - DJANGO_S  # the filters
    assert shown == options_of(parser) - DJANGO_S


def test_every_command_has_a_section() -> None:
    """Each command of the library and of the shop, and each verb of `locks`, is in the reference."""
    ours = {
        name
        for name, app in get_commands().items()
        if str(app) in ("locking", "inventory", "orders", "orders.lab")
    }
    verbs = {f"locks {verb}" for verb in verbs_of(parser_of("locks"))}
    shown = {
        " ".join(line.split()[:2]) if line.startswith("locks") else line.split()[0]
        for _, line, _ in command_sections()
    }
    # Django's own, which inventory opens its ledger for; and inventory's, which has a page.
    assert shown == (ours - {"locks", "flush", "stock"}) | verbs
    page = (ROOT / "docs/inventory/how-to/run.md").read_text()
    assert set(re.findall(r"manage.py stock (\w+)", page)) == set(verbs_of(parser_of("stock")))


def test_the_strategies_of_the_shop() -> None:
    """The page has each alias that the project can set up, and no other."""
    table = rows(TEXT[SHOP / "explanation" / "strategies.md"])
    assert [name for row in table for name in coded(row[0])] == list(SELLING)


def test_the_strategies_of_the_lesson() -> None:
    """The page has each sound strategy in its table, and each broken one below it."""
    path = SHOP / "explanation" / "lesson.md"
    table = {name for row in rows(TEXT[path]) for name in coded(row[0])}
    assert {name for name, strategy in LESSON.items() if strategy.sound} <= table
    assert set(LESSON) <= set(coded(TEXT[path]))


FILE = re.compile(r"`((?:locking|inventory|orders|config|tests|benchmarks|docs|ops|examples)/[\w./-]*)`")


@pytest.mark.parametrize("page", SPOKEN, ids=name_of)
def test_files_exist(page: Path) -> None:
    """A path in backticks is a file or folder of the project."""
    assert [path for path in FILE.findall(prose_of(page)) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", SPOKEN, ids=name_of)
def test_named_tests_exist(page: Path) -> None:
    """A test that a page names is one that there is."""
    assert set(re.findall(r"`(test_\w+)`", TEXT[page])) <= names_of_tests()


@cache
def names_of_tests() -> set[str]:
    """Return the names of all tests, those of the shipped contract included."""
    texts = sources("tests", "locking/testing")
    return {
        name for text in texts for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.MULTILINE)
    }


def test_the_invariants_of_the_audit() -> None:
    """The page on the audit has each invariant that `audit_orders` prints, in its order, and no other."""
    table = rows(section(SHOP / "how-to" / "audit.md", "Audit"))
    assert [row[0] for row in table] == [name.replace("_", " ") for name in INVARIANTS]


def test_the_extras() -> None:
    """The README of the package has each of its extras."""
    table = rows(section(ROOT / "locking" / "README.md", "Extras"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name for row in table for name in coded(row[0])} == set(project["optional-dependencies"])


def test_the_number_of_sound_strategies() -> None:
    """The README and the change log count the ways to sell as they are."""
    sound = sum(strategy.sound for strategy in LESSON.values())
    assert (sound, len(LESSON)) == (21, 30)
    assert "fixes it in twenty-one ways" in TEXT[ROOT / "README.md"]
    assert "thirty ways to sell" in TEXT[ROOT / "CHANGELOG.md"]


def test_every_promise_has_a_test() -> None:
    """Each row of the promises on *How safe is it?* names a test that holds it."""
    page = LIBRARY / "explanation" / "how-safe.md"
    titles = ("What `locking` promises", "What the fence promises")
    promises = [row for title in titles for row in rows(section(page, title))]
    assert len(promises) > 15
    assert [row[0] for row in promises if not re.search(r"`test_\w+`", row[-1])] == []


def test_the_folders_of_the_readme() -> None:
    """The README's list of folders names each that is there."""
    shown = set(re.findall(r"^([a-z]+)/ +", TEXT[ROOT / "README.md"], re.MULTILINE))
    there = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and path.name.isalpha() and (any(path.glob("*.*")))
    }
    assert shown == {name for name in there if name not in ("build", "dist", "staticfiles")} | {"ops"}


# --- options of the backends ------------------------------------------------------------------------------


def shown_options() -> dict[str, set[str]]:
    """Return by class the options that its page lists."""
    tables = {name: rows(section(page, "Settings")) for name, page in backend_pages().items()}
    return {name: {option for row in table for option in coded(row[0])} for name, table in tables.items()}


def test_the_options_that_are_checked() -> None:
    """Redis, ZooKeeper and etcd name their own options in one place each; its page has just these."""
    shown = shown_options()
    assert shown["RedisBackend"] == set(topology.OWN_OPTIONS)
    assert shown["EtcdBackend"] == set(etcd.DEFAULTS)
    assert shown["ZooKeeperBackend"] == set(zookeeper.DEFAULTS)
    assert shown["MemoryBackend"] == set()


@pytest.mark.parametrize(
    "name",
    [
        "DatabaseBackend",
        "AdvisoryLockBackend",
        "TransactionLockBackend",
        "RowLockBackend",
    ],
)
def test_the_options_that_are_refused(name: str) -> None:
    """An unknown option is refused with a list of those that there are: its page has just these."""
    path = f"locking.backends.database.{name}"
    with pytest.raises(ImproperlyConfigured) as refused:
        import_string(path)(conf.AliasSettings(alias="default", backend=path, options={"typo": 1}))
    assert shown_options()[name] == set(re.findall(r"\w+", str(refused.value).partition("it knows")[2]))


def test_the_options_of_redlock() -> None:
    """What the docstring of the class explains is what the page lists."""
    explained = re.findall(r"^    (\w+): ", inspect.getdoc(RedlockBackend) or "", re.MULTILINE)
    assert shown_options()["RedlockBackend"] == set(explained)


# --- pages of the backends --------------------------------------------------------------------------------

SECTIONS = (
    "What it promises",
    "What it needs",
    "Settings",
    "When something fails",
    "What it costs",
    "Limits",
)
"""What a reader finds on the page of every backend, in this order."""

DATABASE_DEFAULTS = {
    "using": "default",
    "timeout": DEFAULT_TIMEOUT,
    "max_connections": connection_pool.MAX_CONNECTIONS,
    "session_pooling": False,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "RedisBackend": {"wait_timeout_ms": topology.DEFAULT_ACK_TIMEOUT_MS},
    "RedlockBackend": {"node_timeout": redlock.DEFAULT_NODE_TIMEOUT, "restart_delay": 0},
    "ZooKeeperBackend": {name: zookeeper.DEFAULTS[name] for name in ("session_timeout", "timeout")},
    "EtcdBackend": {name: etcd.DEFAULTS[name] for name in ("prefix", "timeout")},
}
"""Defaults of options that are values; the others are explained."""


def backend_pages() -> dict[str, Path]:
    """Return the page of each backend, as the table of abilities links it."""
    text = section(REFERENCE / "backends" / "index.md", "What each can do")
    links = re.findall(r"\[`locking\.backends\.[\w.]+\.(\w+)`\]\(([^)]+)\)", text)
    return {name: REFERENCE / "backends" / path for name, path in links}


def test_every_backend_has_a_page_of_its_own() -> None:
    """No page serves two backends, and each begins with the backend's dotted path."""
    pages = backend_pages()
    assert set(pages) == {path.rpartition(".")[2] for path in backends()}
    assert len(set(pages.values())) == len(pages)
    for path in backends():
        assert f"\n`{path}`: " in TEXT[pages[path.rpartition(".")[2]]], path


@pytest.mark.parametrize(("name", "page"), backend_pages().items(), ids=lambda value: str(value))
def test_a_backend_s_page_is_complete(name: str, page: Path) -> None:
    """Each page says what the backend promises, needs, costs and can't do."""
    headings = re.findall(r"^## (.+)$", TEXT[page], re.MULTILINE)
    assert tuple(heading for heading in headings if heading != "Layout") == SECTIONS


@pytest.mark.parametrize(("name", "page"), backend_pages().items(), ids=lambda value: str(value))
def test_the_defaults_of_a_backend_s_options(name: str, page: Path) -> None:
    """A default on the page is the code's."""
    table = {
        coded(row[0])[0]: default_of(row[1]).strip('"')
        for row in rows(section(page, "Settings"))
        if coded(row[0])
    }
    expected = DEFAULTS.get(name, DATABASE_DEFAULTS)
    assert {option: str(expected[option]) for option in expected.keys() & table.keys()} == {
        option: table[option] for option in expected.keys() & table.keys()
    }


@pytest.mark.parametrize(("name", "page"), backend_pages().items(), ids=lambda value: str(value))
def test_a_backend_s_page_promises_what_it_can(name: str, page: Path) -> None:
    """Tokens and the list are promised by the pages of those backends that have them, and by no others."""
    (backend,) = [import_string(path) for path in backends() if path.endswith(f".{name}")]
    promise = section(page, "What it promises")
    assert ("encing tokens" in promise) == bool(backend.supports_fencing)
    assert ("list of held locks" in promise) == issubclass(backend, Listing)


def test_the_backends_that_fence() -> None:
    """The page on fencing names the backends that issue tokens, and no others."""
    text = section(LIBRARY / "how-to" / "fencing.md", "Set it up")
    fencing = {path.rpartition(".")[2] for path in backends() if import_string(path).supports_fencing}
    assert {name for name in coded(text) if name.endswith("Backend")} == fencing
