"""A COMMIT whose answer was lost is settled by the fence's row: success, or an error to be believed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import Error, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from locking import get_lock, locked_transaction
from locking.transactions.fence import (
    FORBID,
    NOTHING,
    TRIES,
    UNSETTLED,
    CommitMarker,
    advance,
    forbid,
    prepare,
    resolve,
)
from locking.utils.databases import reply_was_lost
from tests.locking.support.dropping_proxy import DroppingProxy, proxied
from tests.locking.support.fenced_databases import ALIAS, MARIADB, registered, sales, sell
from tests.locking.support.helpers import elsewhere


@pytest.fixture
def proxy(
    transactional_db: None, connect: Callable[[BaseDatabaseWrapper], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[DroppingProxy]:
    """The database `fenced` is behind a proxy that can lose a COMMIT."""
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", connect)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-") as folder,
        proxied(Path(folder)) as (proxy, database),
        registered(database),
    ):
        yield proxy


def test_a_commit_whose_answer_was_lost_is_a_success(proxy: DroppingProxy) -> None:
    """The row is there, so no answer says *try again*; the hooks run, under the lock."""
    locked: list[bool] = []
    with locked_transaction("shop", using=ALIAS, fenced=True):
        sell("A")
        transaction.on_commit(lambda: locked.append(elsewhere(get_lock("shop").locked)), using=ALIAS)
        proxy.cut = "behind"
    assert sales() == ["A"]
    assert locked == [True]
    assert not get_lock("shop").locked()


def test_the_probe_has_a_connection_of_its_own_beside_a_pool(
    proxy: DroppingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart breaks a pool's connections all at once: the COMMIT is asked for over a new one."""
    with locked_transaction("shop", using=ALIAS, fenced=True):
        sell("A")
    asked: list[bool] = []

    def pool(wrapper: BaseDatabaseWrapper) -> None:
        asked.append("pool" in wrapper.settings_dict["OPTIONS"])

    monkeypatch.setitem(connections[ALIAS].settings_dict["OPTIONS"], "pool", {"min_size": 1})
    monkeypatch.setattr(type(connections[ALIAS]), "pool", property(pool))
    assert CommitMarker(ALIAS, "shop", 0, "of another", 1.0).was_committed() is None
    assert set(asked) == {False}


def test_a_commit_that_never_arrived_is_an_error_that_can_be_believed(proxy: DroppingProxy) -> None:
    """The row isn't there: the error says so, the hooks don't run, and trying again is right."""
    ran: list[str] = []
    with pytest.raises(Error) as lost, locked_transaction("shop", using=ALIAS, fenced=True):
        sell("A")
        transaction.on_commit(partial(ran.append, "hook"), using=ALIAS)
        proxy.cut = "before"
    assert lost.value.__notes__ == [NOTHING]
    assert (sales(), ran) == ([], [])
    assert not get_lock("shop").locked()
    with locked_transaction("shop", using=ALIAS, fenced=True):
        sell("A")
    assert sales() == ["A"]


def test_the_second_transaction_of_a_hold_is_distinguished_from_the_first(proxy: DroppingProxy) -> None:
    """Both have the same token and owner; the mark says which of them was committed."""
    with get_lock("shop", fenced=True):
        with locked_transaction("shop", using=ALIAS, fenced=True):
            sell("first")
        with pytest.raises(Error, match=r".*"), locked_transaction("shop", using=ALIAS, fenced=True):
            sell("second")
            proxy.cut = "before"
    assert sales() == ["first"]


def test_mutant_one_mark_for_a_whole_hold_reports_a_sale_that_never_was(
    proxy: DroppingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first transaction's mark is taken for the second's: the block is a success, and nothing is sold."""
    monkeypatch.setattr("locking.transactions.fence.secrets", SimpleNamespace(token_hex=lambda size: "one"))
    with get_lock("shop", fenced=True):
        with locked_transaction("shop", using=ALIAS, fenced=True):
            sell("first")
        with locked_transaction("shop", using=ALIAS, fenced=True):
            sell("second")
            proxy.cut = "before"
    assert sales() == ["first"]


def test_a_newer_holder_leaves_the_outcome_unknown(proxy: DroppingProxy) -> None:
    """The row has the next one's mark already: no answer is certain, and the error says that."""

    def overtake() -> None:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("UPDATE locking_fence SET token = token + 1, owner = 'B', mark = 'B'")

    proxy.after_cut = lambda: elsewhere(overtake)
    with pytest.raises(Error) as lost, locked_transaction("shop", using=ALIAS, fenced=True):
        sell("A")
        proxy.cut = "behind"
    assert lost.value.__notes__ == [UNSETTLED]
    assert get_lock("shop").locked()


BLIND = "owner = '', mark = ''"
"""What the statement of `forbid` sets when it wipes the mark of the last transaction."""


def force_release_behind_the_commit(proxy: DroppingProxy) -> None:
    """Sell, and have an operator break the lock while the answer to COMMIT is being lost."""
    token = 0
    proxy.after_cut = lambda: elsewhere(lambda: forbid("shop", token, using=ALIAS))
    with locked_transaction("shop", using=ALIAS, fenced=True) as lease:
        token = lease.fencing_token
        sell("A")
        proxy.cut = "behind"


def test_a_force_release_does_not_blind_the_commit_probe(proxy: DroppingProxy) -> None:
    """The broken holder's sale was committed, and the fence row still says so: the block is a success."""
    force_release_behind_the_commit(proxy)
    assert sales() == ["A"]


def test_a_commit_that_never_arrived_is_known_after_a_force_release(proxy: DroppingProxy) -> None:
    """The operator's row doesn't have the lost transaction's mark: the error says nothing was committed."""
    with pytest.raises(Error) as lost, locked_transaction("shop", using=ALIAS, fenced=True) as lease:
        sell("A")
        proxy.after_cut = lambda: elsewhere(lambda: forbid("shop", lease.fencing_token, using=ALIAS))
        proxy.cut = "before"
    assert lost.value.__notes__ == [NOTHING]
    assert sales() == []


def test_mutant_a_force_release_that_wipes_the_mark_denies_a_sale(
    proxy: DroppingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the mark the probe swears that nothing was committed, beside the row that was."""
    monkeypatch.setattr("locking.transactions.fence.FORBID", FORBID.replace("owner = ''", BLIND))
    with pytest.raises(Error) as lost:
        force_release_behind_the_commit(proxy)
    assert lost.value.__notes__ == [NOTHING]
    assert sales() == ["A"]


def test_a_hook_that_raises_is_not_taken_for_a_lost_commit(proxy: DroppingProxy) -> None:
    """Behind the commit an error of the database is the hook's own, and comes out."""

    def hook() -> None:
        raise OperationalError("server closed the connection unexpectedly")

    with (
        pytest.raises(OperationalError, match="unexpectedly"),
        locked_transaction("shop", using=ALIAS, fenced=True),
    ):
        sell("A")
        transaction.on_commit(hook, using=ALIAS)
    assert sales() == ["A"]


def test_without_a_fence_the_error_comes_out(proxy: DroppingProxy) -> None:
    """Nothing can resolve it then: anyone who tries again may do it twice, so the lock is left to its ttl."""
    with pytest.raises(Error, match="closed"), locked_transaction("shop", using=ALIAS):
        sell("A")
        proxy.cut = "behind"
    assert sales() == ["A"]
    assert get_lock("shop").locked()


def test_a_transaction_that_is_still_committing_is_waited_for(proxy: DroppingProxy) -> None:
    """The marker waits for the row's lock, so it can't say no to a commit that is on its way."""
    with transaction.atomic(ALIAS), connections[ALIAS].cursor() as cursor:
        cursor.execute(
            "INSERT INTO locking_fence (name, token, owner, mark, updated_at)"
            " VALUES ('shop', 1, 'A', 'm', now())"
        )
        with pytest.raises(OperationalError, match="lock timeout"):
            CommitMarker(ALIAS, "shop", 1, "m", 0.5).was_committed()
        lost = OperationalError("server closed the connection")
        assert not resolve(CommitMarker(ALIAS, "shop", 1, "m", 0.05), lost)
        assert lost.__notes__ == [UNSETTLED]
    assert CommitMarker(ALIAS, "shop", 1, "m", 1.0).was_committed() is True
    assert CommitMarker(ALIAS, "shop", 1, "other", 1.0).was_committed() is False
    assert CommitMarker(ALIAS, "shop", 0, "other", 1.0).was_committed() is None
    assert CommitMarker(ALIAS, "never used", 1, "m", 1.0).was_committed() is False
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT name FROM locking_fence")
        assert cursor.fetchall() == [("shop",)], "asking leaves nothing behind"


HASTY = "SELECT token, mark FROM locking_fence WHERE name = %s AND %s IS NOT NULL"
"""Asks for the mark of a row, with the arguments of `TOUCH`, and never waits."""


def test_mutant_a_probe_that_does_not_wait_denies_a_commit_on_its_way(
    proxy: DroppingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain SELECT sees what was there before, swears that nothing was committed, and then it is."""
    monkeypatch.setattr("locking.transactions.fence.TOUCH", HASTY)
    marker = CommitMarker(ALIAS, "shop", 1, "m", 1.0)
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(
            "INSERT INTO locking_fence (name, token, owner, mark, updated_at)"
            " VALUES ('shop', 1, 'A', 'of the one before', now())"
        )
        with transaction.atomic(ALIAS):
            cursor.execute("UPDATE locking_fence SET mark = 'm'")
            assert marker.was_committed() is False
    assert marker.was_committed() is True


def test_a_database_that_is_down_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is just being restarted isn't asked once only, and not forever."""
    refused = OperationalError("refused")
    answers: list[bool | Error] = [refused, refused, True]
    asked: list[CommitMarker] = []

    def was_committed(marker: CommitMarker) -> bool:
        asked.append(marker)
        answer = answers.pop(0) if answers else refused
        if isinstance(answer, Error):
            raise answer
        return answer

    monkeypatch.setattr(CommitMarker, "was_committed", was_committed)
    monkeypatch.setattr("locking.transactions.fence.jittered", lambda *_, **__: 0.0)
    lost = OperationalError("server closed the connection")
    marker = CommitMarker(ALIAS, "shop", 1, "m", 1.0)
    assert resolve(marker, lost)
    assert len(asked) == 3
    assert not resolve(marker, lost)
    assert len(asked) == 3 + TRIES
    assert lost.__notes__ == [UNSETTLED]


@pytest.mark.parametrize("fenced_database", [MARIADB[0]], indirect=True, ids=str)
def test_mariadb_tells_it_too(fenced_database: str) -> None:
    """The mark of a committed transaction is found over a new connection, which waits for one in progress."""
    with get_lock("shop", fenced=True) as lease:
        prepare(fenced_database, lease)
        with transaction.atomic(fenced_database):
            marker = advance(fenced_database, lease)
            impatient = replace(marker, timeout=0.1)
            with pytest.raises(OperationalError, match="Lock wait timeout"):
                impatient.was_committed()
        assert marker.was_committed() is True
        assert replace(marker, mark="another").was_committed() is False
        assert replace(marker, token=marker.token - 1, mark="another").was_committed() is None


def test_what_the_server_has_answered_needs_no_settling() -> None:
    """An answer such as a broken rule is an answer; only silence is settled."""
    assert reply_was_lost(OperationalError("server closed the connection"))
    assert reply_was_lost(OperationalError(2013, "Lost connection to server during query"))
    assert not reply_was_lost(OperationalError(1213, "Deadlock found"))
    assert not reply_was_lost(ValueError("no"))
