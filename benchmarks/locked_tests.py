"""What locks cost a test suite: 200 tests of Django's TestCase, with `@distributed_lock` and without.

    python -m benchmarks.locked_tests [--tests 200] [--rounds 5]

Each round runs both suites in processes of their own, in turns: seconds that pytest tells, and CPU seconds of
the process, which a busy machine changes less. The suite with locks has the pytest plugin, which keeps them
in memory; the other has neither.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent

SETTINGS: Final = """
SECRET_KEY = "only for this measurement"
INSTALLED_APPS = ["django.contrib.contenttypes", "locking"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
LOCKING = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
"""

SUITE: Final = """
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.test import TestCase
from locking import distributed_lock

@WRAPPER
def rename(order_id, name):
    order = ContentType.objects.get(pk=order_id)
    order.model = name
    order.save()

class Orders(TestCase):
    def check(self):
        order = ContentType.objects.create(app_label="shop", model="order")
        rename(order.pk, "paid")
        order.refresh_from_db()
        self.assertEqual(order.model, "paid")

for number in range(TESTS):
    setattr(Orders, f"test_{number}", Orders.check)
"""

WRAPPERS: Final = {
    "without locks": "transaction.atomic",
    "with locks": "distributed_lock(key=\"'order:'+<order_id>\")",
}


class Cost(NamedTuple):
    """What one run took, in seconds."""

    elapsed: float
    cpu: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    costs: dict[str, list[Cost]] = {name: [] for name in WRAPPERS}
    with tempfile.TemporaryDirectory() as folder:
        for name, wrapper in WRAPPERS.items():
            prepare(Path(folder, name), wrapper, arguments.tests)
        for _ in range(arguments.rounds):
            for name in WRAPPERS:
                costs[name].append(run(Path(folder, name), arguments.tests))
    report(costs, arguments.tests)


def prepare(folder: Path, wrapper: str, tests: int) -> None:
    """Write a suite."""
    folder.mkdir()
    (folder / "measured_settings.py").write_text(SETTINGS)
    (folder / "test_suite.py").write_text(SUITE.replace("WRAPPER", wrapper).replace("TESTS", str(tests)))
    (folder / "pytest.ini").write_text(
        "[pytest]\nDJANGO_SETTINGS_MODULE = measured_settings\npythonpath = .\n"
    )


def run(folder: Path, tests: int) -> Cost:
    """Run a suite and return what it took."""
    # no other plugin: its start would be a part of both costs, and bring their ratio nearer to 1
    plugins = ["-p", "pytest_django.plugin"]
    plugins += ["-p", "locking.testing.pytest_plugin"] if folder.name == "with locks" else []
    command = [sys.executable, "-m", "pytest", "-q", *plugins]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    before = cpu_of_children()
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(rf"^{tests} passed.* in ([0-9.]+)s", done.stdout, re.MULTILINE)
    if found is None:
        sys.exit(done.stdout + done.stderr)
    return Cost(float(found[1]), cpu_of_children() - before)


def cpu_of_children() -> float:
    """Return the CPU seconds of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(costs: dict[str, list[Cost]], tests: int) -> None:
    """Print the fastest rounds, which others on the machine disturbed least, and their ratio."""
    print(f"{tests} tests           " + "".join(f"{field:>12}" for field in Cost._fields))
    fastest = {name: [min(column) for column in zip(*each, strict=True)] for name, each in costs.items()}
    for name, least in fastest.items():
        print(f"{name:18}" + "".join(f"{seconds:10.2f} s" for seconds in least))
    bare, locked = fastest.values()
    print(
        f"{'ratio':18}"
        + "".join(f"{after / before:12.2f}" for before, after in zip(bare, locked, strict=True))
    )


if __name__ == "__main__":
    main()
