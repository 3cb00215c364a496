"""Running work in many threads or processes at once: every race of this package begins here.

It needs Django and no app of the package, so that a team can race code that has never heard of it.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

from django.db import connections


def race_threads(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run each function in a thread of its own, all begun together; return values or exceptions, in order."""
    results: list[Any] = [None] * len(work)
    begin = threading.Barrier(len(work))

    def run(place: int) -> None:
        try:
            begin.wait()
            results[place] = work[place]()
        except Exception as error:
            results[place] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def race_processes(
    work: Callable[[int], Any],
    processes: int,
    *,
    kill: int | None = None,
    when: Callable[[], bool] | None = None,
) -> list[int | None]:
    """Call `work(number)` in forked processes, all begun together; return how each has ended.

    Args:
        kill: the number of one that is killed by SIGKILL as soon as `when()` is true.

    Returns:
        For each the exit status: 0, or minus the signal that ended it.
    """
    begin = get_context("fork").Barrier(processes)

    def run(number: int) -> None:
        begin.wait()
        work(number)

    children = fork(run, processes)
    if kill is not None:
        while when is not None and not when() and children[kill].is_alive():
            pass
        if (pid := children[kill].pid) is not None and children[kill].is_alive():
            os.kill(pid, signal.SIGKILL)
    for child in children:
        child.join()
    return [child.exitcode for child in children]


def fork(work: Callable[[int], Any], processes: int) -> list[BaseProcess]:
    """Start `work(number)` in forked processes, which share no database connection with their parent."""
    context = get_context("fork")
    connections.close_all()
    children: list[BaseProcess] = [
        context.Process(target=work, args=(number,), daemon=True) for number in range(processes)
    ]
    with warnings.catch_warnings():  # of threads that aren't in the child: it starts its own
        warnings.simplefilter("ignore", DeprecationWarning)
        for child in children:
            child.start()
    return children
