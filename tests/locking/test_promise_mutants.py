"""Where a change of one line breaks a promise of `how-safe.md`, a test that `make test` runs fails."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pytest

from tests.locking.support.mutated import VERDICT
from tests.support.warm import WarmProcess

LOCK, LEASE, RENEWAL = "locking.core.lock", "locking.core.lease", "locking.core.renewal"
WAITS = "locking.core.waits"
DECORATOR = "locking.transactions.decorator"
LOCKED = "locking.transactions.locked_transaction"
CONTRACT = "tests/locking/backends/test_contract.py"
CORE = "tests/locking/core"
TRANSACTIONS = "tests/locking/transactions"

PLUGINS = ("pytest_django.plugin", "pytest_asyncio.plugin", "pytest_timeout", "xdist.plugin")


@dataclass(frozen=True)
class Mutant:
    """One changed line, the promise that it breaks, and what notices.

    Attributes:
        promise: in the words of the page.
        module: whose line it is.
        old, new: the line before and after, or a part that the module has once.
        tests: the file that has the tests.
        names: what their addresses have to contain, joined by *and*; one of the tests has to fail.
    """

    promise: str
    module: str
    old: str
    new: str
    tests: str
    names: str = ""


MUTANTS = (
    Mutant("the body never runs without the lock", LOCK,
           "if (moment := now()) >= grant.since + self.ttl:",
           "if (moment := now()) < 0:",
           f"{CORE}/test_late_grants.py"),
    Mutant("one holder at a time: what was entered twice is left twice", LOCK,
           "hold.depth += 1",
           "hold.depth += 0",
           f"{CORE}/test_leases_in_blocks.py", "inner_call"),
    Mutant("several names are taken all or none", LOCK,
           "_together(taken)._give_back(error)",
           "str(error)",
           f"{CORE}/test_lock.py", "rolls_back"),
    Mutant("several names are held together: the first may have ended while the last was waited for", LOCK,
           "lease.ensure_held()  # the first may have ended while we waited for the last",
           "lease.remaining()",
           CONTRACT, "early_name_that_ended"),
    Mutant("every wait is bounded by a monotonic clock", LOCK,
           "else begun + wait - now()\n        if left",
           "else begun + wait + 3.0 - now()\n        if left",
           f"{CORE}/test_waiters.py", "ends_by_the_clock"),
    Mutant("a lost lock is never taken up again under the same lease", RENEWAL,
           "elif held and since < lease.deadline:",
           "elif held:",
           f"{CORE}/test_renewal.py", "revive"),
    Mutant("never released before the transaction has ended", LOCK,
           'if self.on_open_transaction != "ignore":',
           'if self.on_open_transaction == "hold":',
           f"{CORE}/test_locks_in_transactions.py", "refused"),
    Mutant("nor while its COMMIT may still be at work", LEASE,
           "        if self.unsettled:\n",
           "        if not self.leases:\n",
           f"{TRANSACTIONS}/test_interrupted_commits.py", "keeps_its_lock"),
    Mutant("a lock that was lost before COMMIT rolls the transaction back", LEASE,
           "        self.ensure_held()\n        if not self.terms.shared_name:",
           "        if not self.terms.shared_name:",
           f"{TRANSACTIONS}/test_transactions.py", "lost_before_the_commit"),
    Mutant("only the owner of a hold can release it, and others get an error", LEASE,
           "        if not was_held:\n",
           "        if was_held is None:\n",
           f"{CORE}/test_lease.py", "at_its_release"),
    Mutant("an unconfirmed release: it can't be entered again", LEASE,
           "if lease is None or lease.unreleased:",
           "if lease is None:",
           f"{CORE}/test_pending_release.py", "not_entered_again"),
    Mutant("an unconfirmed release: ensure_held() raises", LEASE,
           "        if self.unreleased:\n            raise",
           "        if not self.leases:\n            raise",
           f"{CORE}/test_pending_release.py", "proves_nothing"),
    Mutant("the body's own error is never masked", LEASE,
           "if isinstance(failure, BackendError):",
           "if isinstance(failure, BackendError) and not body_error:",
           CONTRACT, "TestCore and mask"),
    Mutant("a failed release is retried in the background", LEASE,
           "            self.release_later(failure)\n            lost =",
           "            lost =",
           f"{CORE}/test_pending_release.py"),
    Mutant("a short outage costs no lease", LEASE,
           "if self._state is State.UNKNOWN:\n            self._state = State.HELD",
           "if self._state is State.UNKNOWN:\n            self._state = State.LOST",
           f"{CORE}/test_renewal.py", "short_outage"),
    Mutant("a long outage is reported as a loss", LEASE,
           "if moment >= self.deadline:",
           "if moment < 0:",
           f"{CORE}/test_lease.py", "deadline"),
    Mutant("the local deadline never lies behind the server's", LEASE,
           "self.deadline = since + self.ttl\n",
           "self.deadline = now() + self.ttl\n",
           f"{CORE}/test_lease.py", "deadline"),
    Mutant("a lost lock is reported", LEASE,
           "if on_lost is None:\n            return",
           "if on_lost is not None:\n            return",
           f"{CORE}/test_lease.py", "on_lost"),
    Mutant("a cancelled task leaves no lock behind", LOCK,
           "if not self.terms.owner_is_given:",
           "if self.terms.owner_is_given:",
           f"{CORE}/test_lock.py", "unknown_outcome"),
    Mutant("a forked child neither has nor releases its parent's locks", LEASE,
           "return self._generation != PROCESS.generation",
           "return False",
           CONTRACT, "fork and [redis]"),
    Mutant("locks that wait in a circle are found, and a wait that is over is in none", WAITS,
           "return None if self._watch is None else self._watch.end()",
           "return None",
           "tests/locking/inspection/test_deadlocks.py", "a_wait_that_is_over"),
    Mutant("the body never runs without the lock: names that came while it waited are locked", DECORATOR,
           "if not set(needed) <= set(held):",
           "if not needed:",
           f"{TRANSACTIONS}/test_keys_asked_again.py", "added_while_it_waited"),
    Mutant("a lock that was lost before COMMIT rolls back what a locked transaction did", LOCKED,
           "            section.lease.confirm()\n",
           "            section.lease.remaining()\n",
           f"{TRANSACTIONS}/test_transactions.py", "lost_before_the_commit"),
    Mutant("released after COMMIT, not before", LOCKED,
           "            section.lease.confirm()\n",
           "            section.lease.confirm()\n            let_go(section.lease)\n",
           f"{TRANSACTIONS}/test_transactions.py", "commit"),
    Mutant("no value in a key can make it name another lock", "locking.keys.template",
           "encode(self._text(term, arguments), self.unsafe)",
           "self._text(term, arguments)",
           "tests/locking/keys/test_keys.py", "builds_the_name"),
    Mutant("one holder at a time: another task's hold isn't entered", LOCK,
           "        if hold.is_another_calls():\n            raise",
           "        if hold is None:\n            raise",
           f"{CORE}/test_shared_thread.py"),
    Mutant("one holder at a time: a permit that was given back hides no other", LOCK,
           "if lease is not None and lease.registered:",
           "if lease is not None:",
           f"{CORE}/test_leases_in_blocks.py", "hides"),
    Mutant("never released before the transaction has ended, in a task either", LOCK,
           "await in_calling_thread(partial(refuse_open_transactions, (self.name,)))",
           "await asyncio.sleep(0)",
           f"{CORE}/test_locks_in_transactions.py", "asynchronous_form"),
    Mutant("an attempt that fails gives back nothing that another owner holds", LOCK,
           "if is_owner_of(client_id, owner) and",
           "if owner and",
           "tests/locking/contrib/test_decorators_celery.py", "redelivered"),
    Mutant("a killed holder's guarded lock is released by another process of its host", LOCK,
           "        if terms.guarded:\n",
           "        if not terms:\n",
           "tests/locking/liveness/test_release.py", "killed_process_held"),
    Mutant("a lease is renewed for as long as it is held", LOCK,
           "        if lease.renewed:\n            lease.rescheduled",
           "        if not lease.renewed:\n            lease.rescheduled",
           f"{CORE}/test_renewal.py", "several_times"),
    Mutant("a cancelled task leaves no place in a queue behind", LOCK,
           "await asyncio.shield(left)",
           "await asyncio.sleep(0)",
           f"{CORE}/test_lock.py", "cancelled_task"),
    Mutant("a waiter that was refused has left the queue", LOCK,
           "await self._leave(waiter)",
           "str(waiter)",
           f"{CORE}/test_waiters.py", "has_left_the_queue"),
    Mutant("a silent server holds up no further requests", LOCK,
           "breaker.failed(self.backend, self.key, waited)",
           "str(waited)",
           f"{CORE}/test_breaker.py", "nothing_is_sent"),
)  # fmt: skip


class Judge:
    """A process with pytest that has collected the tests of all mutants, and is forked for each mutant."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        plugins = [part for plugin in PLUGINS for part in ("-p", plugin)]
        arguments = [
            "-m", "pytest", "-p", "tests.locking.support.mutated", *plugins,
            "-p", "no:cacheprovider", "--capture=no", "-q", "--reuse-db", "--timeout", "60",
            "--selection", "quick", *sorted({mutant.tests for mutant in MUTANTS}),
        ]  # fmt: skip
        self.process = WarmProcess(
            arguments, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._requests, self._verdicts = self.process.stdin, self.process.stdout

    def verdict(self, mutant: Mutant) -> dict[str, list[str]]:
        """Return the addresses of the tests that `passed` and that `failed`, up to the first that failed."""
        self._requests.write(json.dumps(asdict(mutant)) + "\n")
        self._requests.flush()
        printed = []
        for line in self._verdicts:
            if line.startswith(VERDICT):
                return json.loads(line.removeprefix(VERDICT))  # type: ignore[no-any-return]
            printed.append(line)
        raise AssertionError("".join(printed)[-6000:] + self.process.stderr.read()[-6000:])


@pytest.fixture(scope="session")
def judge(django_db_setup: None) -> Iterator[Judge]:
    """Return the process, one for all mutants of this worker."""
    one = Judge()
    with one.process:
        yield one


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.promise)
def test_a_broken_promise_is_noticed(judge: Judge, mutant: Mutant) -> None:
    """At least one of the tests fails; that none could be run is no proof."""
    verdict = judge.verdict(mutant)
    assert verdict.get("failed"), verdict
