"""The worker's tasks."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_postrun
from django.conf import settings
from django.contrib.auth.models import Group

from locking import assert_locked, distributed_lock, get_lock
from locking.contrib.celery import UniqueTask
from tests.locking.contrib.worker.app import app

SHORT = 6.0  # seconds of a lease whose holder is killed


def say(what: str) -> None:
    """Tell the test how far a task is."""
    client = redis.Redis.from_url(settings.REDIS_URL)
    client.rpush("said", what)
    client.close()


def hear(what: str) -> None:
    """Wait until the test says so; half a minute at most."""
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=35)
    assert client.blpop([f"tell:{what}"], timeout=30), f"no signal {what}"
    client.close()


@task_postrun.connect
def say_how_it_ended(task: Task, state: str, **_: Any) -> None:
    """Tell the test that a task had its turn, whether its body ran or not; tests run tasks of other apps."""
    if task.app is app:
        say(f"{state} {task.name.rsplit('.', 1)[-1]}")


@app.task
@distributed_lock(key="'order:'+<order_id>", wait=0)
def unbound(order_id: int) -> None:
    assert_locked(f"order:{order_id}")
    Group.objects.create(name=f"unbound {order_id}")
    say("unbound done")


@app.task(bind=True, max_retries=0)
@distributed_lock(key="'order:'+<order_id>", wait=0, on_conflict="retry")
def retried(self: Task, order_id: int) -> None:
    Group.objects.create(name=f"retried {order_id}")
    say(f"retried, with {self.request.retries} of its own retries")


@app.task
@distributed_lock(key="'order:'+<order_id>", wait=0, on_conflict="skip")
def skipped(order_id: int) -> None:
    Group.objects.create(name="skipped ran")


@app.task
@distributed_lock(key="'order:'+<order_id>", wait=0, on_conflict="raise")
def raised(order_id: int) -> None:
    Group.objects.create(name="raised ran")


@app.task
def mark(what: str) -> None:
    say(what)


@app.task
@distributed_lock(key="'order:7'", wait=0)
def soft() -> None:
    assert get_lock("order:7").locked()
    Group.objects.create(name="soft")
    say("soft began")
    try:
        hear("never")
    except SoftTimeLimitExceeded:
        say("soft limit")
        raise


@app.task
@distributed_lock(key="'order:7'", wait=0, ttl=SHORT)
def hard() -> None:
    Group.objects.create(name="hard")
    say("hard began")
    hear("never")


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
@distributed_lock(key="'order:7'", wait=0, on_conflict="raise")
def late(self: Task) -> None:
    redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
    Group.objects.create(name=f"late, redelivered: {redelivered}")
    say(f"late {os.getpid()}")
    if not redelivered:
        hear("never")


@app.task(bind=True, acks_late=True)
@distributed_lock(key="'order:7'", wait=0, on_conflict="raise")
def slow(self: Task) -> None:
    """The first delivery is still at it when the broker gives the task out again."""
    redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
    Group.objects.create(name=f"slow, redelivered: {redelivered}")
    say(f"slow, redelivered: {redelivered}")
    if not redelivered:
        hear("go on")


@app.task(acks_late=True, reject_on_worker_lost=True)
@distributed_lock(key="'shelf'", wait=0)
def count(number: int) -> None:
    """Work, one at a time; as many as the test has doomed stand still until they are killed."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        doomed = client.decr("doomed") >= 0
    if doomed:
        say(f"doomed {os.getpid()}")
        hear("never")
    time.sleep(0.02)  # room for others to find the lock taken
    Group.objects.create(name=f"count {number:03}")


class Once(UniqueTask):
    abstract = True
    unique_key = "'report:'+<year>"


def report(self: Task, year: int, what: str = "") -> None:
    assert_locked(f"report:{year}")
    say(f"report {os.getpid()}")
    if what == "retry" and not self.request.retries:
        raise self.retry(countdown=0)
    if what == "raise":
        raise ValueError("no report")
    if what == "wait":
        hear("go on")
    if what == "die" and not (self.request.delivery_info or {}).get("redelivered"):
        hear("never")
    say("report done")


report_once: Any = app.task(bind=True, base=Once, name="report_once")(report)
report_skipped: Any = app.task(bind=True, base=Once, name="report_skipped", unique_conflict="skip")(report)
report_joined: Any = app.task(bind=True, base=Once, name="report_joined", unique_conflict="result")(report)
report_late: Any = app.task(
    bind=True, base=Once, name="report_late", acks_late=True, reject_on_worker_lost=True
)(report)


@app.task(base=Once, unique_conflict="skip", unique_until="start")
def reindex(year: int, what: str = "") -> None:
    """It is queued once, and may run while the next one is queued."""
    say("reindex began")
    if what == "wait":
        hear("go on")
    say("reindex done")
