"""A newcomer: an empty folder, the wheel, a project and the code of `docs/library/how-to/entry-points.md`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchmarks.locked_tests import WRAPPERS, Cost, cpu_of_children, prepare
from tests import ROOT
from tests.support.scratch import gunicorn, parameters, uvicorn

PAGE = ROOT / "docs" / "library" / "how-to" / "entry-points.md"
BLOCK = re.compile(r"^```\{code-block\} python\n:caption: (\S+)\n\n(.*?)^```$", re.MULTILINE | re.DOTALL)

STOCK, BUYERS = 2, 4
"""Pieces of the one product, and who wants one at the same time."""

OWN = {  # what the project has without any lock
    "store/models.py": """
        import time

        from django.db import models, transaction


        class Mug(models.Model):
            on_hand = models.IntegerField(default=0)


        class Sale(models.Model):
            pass


        @transaction.atomic
        def sell(mug_id):
            mug = Mug.objects.get(pk=mug_id)
            time.sleep(0.02)  # room for another buyer who reads the same
            if mug.on_hand < 1:
                return False
            mug.on_hand -= 1
            mug.save()
            Sale.objects.create()
            return True
        """,
    "shop/urls.py": """
        from django.contrib import admin
        from django.urls import include, path
        from rest_framework.routers import DefaultRouter
        from store import naive, views, viewsets
        from store.api import urls as ninja

        router = DefaultRouter()
        router.register("mugs", viewsets.MugViewSet, basename="mug")
        urlpatterns = [
            path("view/<int:mug_id>/", views.buy),
            path("async/<int:mug_id>/", views.buy_async),
            path("naive/<int:mug_id>/", naive.buy),
            path("drf/", include(router.urls)),
            path("ninja/", ninja),
            path("admin/", admin.site.urls),
        ]
        """,
    "shop/celery.py": """
        from celery import Celery

        app = Celery("shop")
        app.config_from_object("django.conf:settings", namespace="CELERY")
        app.autodiscover_tasks()
        """,
    "shop/__init__.py": "from .celery import app\n",
    "prepare.py": """
        import django
        from django.core.management import call_command

        django.setup()
        call_command("check")
        call_command("makemigrations", "store")
        call_command("migrate", verbosity=0)
        call_command("createsuperuser", interactive=False, username="admin", email="a@example.com")
        """,
    "send.py": """
        import django

        django.setup()
        from store.tasks import buy

        print(sum(result.get(timeout=60) for result in [buy.delay(1) for _ in range(BUYERS)]))
        """,
}
OF_THIS_PROJECT = ("DJANGO", "PYTHON", "PYTEST")
"""How the variables begin that a newcomer doesn't have."""

LIMIT = 1.2
"""How many times the CPU seconds of tests without locks those with locks may take."""

CSRF = "a" * 32
"""Django takes any pair of a cookie and a header that are the same."""

OVER_HTTP = {
    "view": "/view/1/",
    "async view": "/async/1/",
    "DRF viewset": "/drf/mugs/1/buy/",
    "ninja endpoint": "/ninja/buy/1",
    "admin action": "/admin/store/mug/",
}


class Shown(NamedTuple):
    """One line of the result."""

    what: str
    where: str
    found: str
    good: bool


class Newcomer:
    """A new project.

    Args:
        folder: empty.
        python: an interpreter that has Django and the others, and the wheel or finds it on `path`.
        database: of its own, as Django's settings have it.
        redis: URL of a server of its own. broker: the same, as Celery has it.
        path: PYTHONPATH; empty where the wheel is installed.
    """

    rounds = 1
    """How often each suite of tests is timed."""

    def __init__(
        self, folder: Path, python: Path, database: Mapping[str, Any], redis: str, broker: str, path: str = ""
    ) -> None:
        self.folder, self.python, self.database = folder, python, database
        self.redis, self.broker = redis, broker
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_PROJECT)
        }
        self.environment = inherited | {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": path}

    def run(self, *arguments: str, check: bool = True, **environment: str) -> str:
        """Run its Python and return what it printed."""
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def make(self) -> None:
        """Start the project, and write the page's code into it."""
        self.run("-m", "django", "startproject", "shop", ".", DJANGO_SETTINGS_MODULE="")
        self.run("manage.py", "startapp", "store")
        written = {name: textwrap.dedent(text) for name, text in OWN.items()} | dict(
            BLOCK.findall(PAGE.read_text())
        )
        settings = written.pop("shop/settings.py")
        written["send.py"] = f"BUYERS = {BUYERS}\n{written['send.py']}"
        for name, text in written.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        servers = f"REDIS, CELERY_BROKER = {self.redis!r}, {self.broker!r}"
        with (self.folder / "shop" / "settings.py").open("a") as file:
            file.write(f"\nDATABASES = {{'default': {self.database!r}}}\n{servers}\n{settings}")
        self.run("prepare.py", DJANGO_SUPERUSER_PASSWORD="admin")

    def versions(self) -> str:
        """What runs here, in words."""
        names = ("Django", "redis", "djangorestframework", "django-ninja", "celery", "gunicorn", "uvicorn")
        code = (
            "import platform, importlib.metadata as each; print('Python', platform.python_version(), end='')"
        )
        listed = f"for name in {names}: print(',', name, each.version(name), end='')"
        return self.run("-c", f"{code}\n{listed}").strip()

    # the shelf

    def query(self, statement: str) -> list[tuple[int, ...]]:
        """Ask its database."""
        with psycopg.connect(**parameters(self.database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def restock(self) -> None:
        """Begin with STOCK pieces, and none sold."""
        self.query("TRUNCATE store_mug, store_sale")
        self.query(f"INSERT INTO store_mug (id, on_hand) VALUES (1, {STOCK})")  # noqa: S608 - a number of ours

    def sold(self) -> Shown:
        """Whether every piece was sold once."""
        ((left,),) = self.query("SELECT on_hand FROM store_mug")
        ((sales,),) = self.query("SELECT count(*) FROM store_sale")
        return Shown("", "", f"{sales} of {STOCK} sold, {left} left", (sales, left) == (STOCK, 0))

    def attempt(self, what: str, where: str, step: Callable[[], object]) -> Shown:
        """Let BUYERS come, and look what was sold."""
        self.restock()
        answers = step()
        found = self.sold()
        return Shown(what, where, f"{found.found}; {answers}", found.good)

    # the ways in

    def show(self) -> Iterator[Shown]:
        """Try everything."""
        self.make()
        yield from self.served_by_gunicorn()
        yield from self.served_by_uvicorn()
        yield from self.elsewhere()

    def served_by_gunicorn(self) -> Iterator[Shown]:
        """The ways in over HTTP, in two processes of four threads."""
        with gunicorn(self.python, self.folder, self.environment, 2, "--threads", "4") as address:
            yield from self.over_http("gunicorn", address)

    def served_by_uvicorn(self) -> Iterator[Shown]:
        """The ways in over HTTP, in two processes with an event loop."""
        with uvicorn(self.python, self.folder, self.environment, 2) as address:
            yield from self.over_http("uvicorn", address)

    def elsewhere(self) -> Iterator[Shown]:
        """A worker's task, a command, and the project's own tests."""
        yield self.attempt("Celery task", "a worker", self.by_celery)
        yield self.attempt("management command", "processes", self.by_command)
        yield self.locked_tests()

    def over_http(self, server: str, address: str) -> Iterator[Shown]:
        """The five ways in over HTTP, and the one that is refused."""
        session = login(address)
        for what, path in OVER_HTTP.items():
            form = {"action": "sell_one", "_selected_action": "1"} if what == "admin action" else {}

            def crowd(path: str = path, form: Mapping[str, str] = form) -> str:
                with ThreadPoolExecutor(BUYERS) as buyers:
                    return dict_of(
                        buyers.map(lambda _: post(address + path, form, session)[0], range(BUYERS))
                    )

            yield self.attempt(what, server, crowd)
        status, text = post(f"{address}/naive/1/", {}, session)
        fix = "LockTransactionError" in text and "@distributed_lock" in text
        yield Shown("naive with get_lock", server, f"{status}, shown the fix: {fix}", status == 500 and fix)

    def by_celery(self) -> str:
        """A worker of four threads."""
        command = [str(self.python), "-m", "celery", "-A", "shop", "worker", "--pool", "threads", "-c", "4"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        worker = subprocess.Popen(
            [*command, *quiet], cwd=self.folder, env=self.environment | {"C_FORCE_ROOT": "1"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return f"{self.run('send.py').strip()} tasks sold one"
        finally:
            worker.terminate()
            worker.wait(30)

    def by_command(self) -> str:
        """As many processes as buyers, at once."""
        with ThreadPoolExecutor(BUYERS) as buyers:
            return dict_of(buyers.map(lambda _: self.run("manage.py", "buy", "1").strip(), range(BUYERS)))

    def locked_tests(self) -> Shown:
        """200 tests of TestCase with locks in memory and without: the faster of some rounds each.

        One round is a look whether they pass, for which a few are enough: it measures nothing.
        """
        measured = self.rounds > 1
        tests = 200 if measured else 20
        costs: dict[str, list[Cost]] = {}
        for name, wrapper in WRAPPERS.items():
            prepare(self.folder / name.replace(" ", "_"), wrapper, tests)
        for _ in range(self.rounds):
            for name in WRAPPERS:
                costs.setdefault(name, []).append(self.time_suite(name.replace(" ", "_"), tests))
        bare, locked = (Cost(*map(min, zip(*each, strict=True))) for each in costs.values())
        elapsed, cpu = (after / before for after, before in zip(locked, bare, strict=True))
        found = f"{elapsed:.2f} x the time of tests without locks, {cpu:.2f} x their CPU seconds"
        return Shown(f"{tests} locked tests", "pytest", found, cpu <= LIMIT or not measured)

    def time_suite(self, suite: str, tests: int) -> Cost:
        """Run a suite; return the seconds that pytest tells, and those of the processor."""
        before = cpu_of_children()
        place = ["--rootdir", suite, "-c", f"{suite}/pytest.ini", suite]
        quiet = ["-q", "-p", "no:cacheprovider"]
        reported = self.run("-m", "pytest", *quiet, *place, DJANGO_SETTINGS_MODULE="measured_settings")
        found = re.search(rf"^{tests} passed.* in ([0-9.]+)s", reported, re.MULTILINE)
        assert found is not None, reported
        return Cost(float(found[1]), cpu_of_children() - before)


def dict_of(answers: Any) -> str:
    """How often each answer came."""
    return json.dumps(dict(Counter(map(str, answers))))


class Stay(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPEN = urllib.request.build_opener(Stay).open


def post(url: str, form: Mapping[str, str], session: str = "") -> tuple[int, str]:
    """Send a form; return the status and the text."""
    headers = {"Cookie": f"csrftoken={CSRF}; sessionid={session}", "X-CSRFToken": CSRF}
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), headers)
    try:
        with OPEN(request, timeout=90) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def login(address: str) -> str:
    """Return a session of the administrator's."""
    form = urllib.parse.urlencode({"username": "admin", "password": "admin", "next": "/admin/"}).encode()
    headers = {"Cookie": f"csrftoken={CSRF}", "X-CSRFToken": CSRF}
    try:
        OPEN(urllib.request.Request(f"{address}/admin/login/", form, headers), timeout=60)
    except urllib.error.HTTPError as answer:
        cookies = "; ".join(answer.headers.get_all("Set-Cookie") or [])
        if found := re.search(r"sessionid=(\w+)", cookies):
            return found[1]
    raise AssertionError("the administrator could not log in")


def table(shown: list[Shown]) -> str:
    """The results as lines."""
    return "\n".join(
        f"{'ok  ' if each.good else 'BAD '} {each.what:20} {each.where:10} {each.found}" for each in shown
    )
