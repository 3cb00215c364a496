"""Whatever uses Django, Celery and the database driver, on this cell's versions."""

import asyncio
import importlib.util
import threading
from importlib.metadata import version

import django
import pytest
from celery import Celery, shared_task
from django.contrib.contenttypes.models import ContentType
from django.core.checks import run_checks
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import RequestFactory

from locking import LockNotAcquired, StaleFencingToken, distributed_lock, get_lock, locked_transaction
from locking.testing import override_locks, simulate_contention

BACKENDS = ["default", "database"]


def test_what_runs_here() -> None:
    """Print the versions: the table in the documentation is made of these lines."""
    packages = ["redis", "django-redis", "celery"]
    driver = "psycopg" if importlib.util.find_spec("psycopg") else "psycopg2-binary"
    hiredis = version("hiredis") if importlib.util.find_spec("hiredis") else "none"
    found = [f"{name} {version(name)}" for name in (*packages, driver)]
    print("CELL", "Django", django.__version__, *found, "hiredis", hiredis)


def test_the_checks_find_nothing() -> None:
    """A sound project hears nothing."""
    assert run_checks(tags=["locking"]) == []


@distributed_lock(key="'order:'+<order_id>", wait=0)
def view(request, order_id):
    """A view under test."""
    return HttpResponse("paid")


@distributed_lock(key="'order:'+<order_id>", wait=0)
async def async_view(request, order_id):
    """An asynchronous view under test."""
    return HttpResponse("paid")


@pytest.mark.django_db
def test_a_view_is_protected() -> None:
    """200 alone, 409 while another holds the lock; under a TestCase's transaction."""
    request = RequestFactory().post("/orders/42/pay/")
    assert view(request, 42).status_code == 200
    with simulate_contention("order:42"):
        assert view(request, 42).status_code == 409


def test_an_async_view_is_protected() -> None:
    """The same on an event loop."""
    request = RequestFactory().post("/orders/42/pay/")
    assert asyncio.run(async_view(request, 42)).status_code == 200
    with simulate_contention("order:42"):
        assert asyncio.run(async_view(request, 42)).status_code == 409


@pytest.mark.django_db
def test_a_task_is_protected() -> None:
    """A contended task asks to be run again."""
    from celery.exceptions import Retry

    app = Celery("cell", broker="memory://", set_as_current=True)
    app.conf.task_always_eager = False

    @shared_task(bind=True)
    @distributed_lock(key="'order:'+<order_id>", wait=0)
    def pay(self, order_id):
        return "paid"

    assert pay.run(42) == "paid"
    with simulate_contention("order:42"), pytest.raises((Retry, LockNotAcquired)):
        pay.run(42)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_commits_before_it_releases(backend: str) -> None:
    """The next holder sees what the last one wrote."""
    row = ContentType.objects.create(app_label="shop", model="0")

    def add() -> None:
        for _ in range(5):
            with locked_transaction("counter", backend=backend, wait=60):
                here = ContentType.objects.get(pk=row.pk)
                here.model = str(int(here.model) + 1)
                here.save()
        connection.close()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    row.refresh_from_db()
    assert row.model == "20"


@pytest.mark.django_db(transaction=True)
def test_the_fence_refuses_an_overtaken_holder() -> None:
    """The driver's errors are understood: a late holder's transaction is refused."""
    with pytest.raises(StaleFencingToken), override_locks():
        with locked_transaction("stock", fenced=True):
            pass
        from locking.backends.memory import STORES

        STORES["default"]._token, late = 0, STORES["default"]
        late._mint = lambda: 1  # type: ignore[method-assign]
        with locked_transaction("stock", fenced=True):
            pass


@pytest.mark.django_db(transaction=True)
def test_an_open_transaction_is_refused() -> None:
    """The lock would be released before the COMMIT."""
    from locking import LockTransactionError

    with transaction.atomic(), pytest.raises(LockTransactionError), locked_transaction("a"):
        pass


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.django_db(transaction=True)
def test_a_lock_excludes(backend: str) -> None:
    """Another thread is refused, and granted the lock after the release."""
    refused: list[Exception] = []

    def attempt() -> None:
        try:
            get_lock("a", wait=0, backend=backend).acquire()
        except LockNotAcquired as error:
            refused.append(error)

    with get_lock("a", backend=backend):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join(30)
    assert len(refused) == 1


@distributed_lock(key="order:{order_id}", wait=0)
def capture(order_id):
    """A task under test: module-level, as Django's tasks need it."""
    return f"captured order {order_id}"


@pytest.mark.django_db(transaction=True)
def test_a_task_of_django() -> None:
    """Django's own task runs under the lock; refused, its result is FAILED with LockNotAcquired."""
    tasks = pytest.importorskip("django.tasks")
    task = tasks.task(capture)
    assert task.enqueue(42).return_value == "captured order 42"
    with override_locks(), simulate_contention("order:42"):
        refused = task.enqueue(42)
    assert refused.status == tasks.TaskResultStatus.FAILED
    assert refused.errors[0].exception_class is LockNotAcquired
