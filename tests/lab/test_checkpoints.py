"""Checkpoints cost nothing without a hook, and a hook sees only its own thread."""

from __future__ import annotations

import threading

import pytest

from orders.lab.checkpoints import checkpoint, installed


def test_without_a_hook_nothing_happens():
    """In the shop a checkpoint does nothing."""
    checkpoint("read", on_hand={"mug": 1})


def test_a_hook_sees_name_and_facts_inside_its_block_only():
    """The hook is called inside the block, and no more after it."""
    seen = []
    with installed(lambda name, /, **facts: seen.append((name, facts))):
        checkpoint("read", on_hand=1)
    checkpoint("decided")
    assert seen == [("read", {"on_hand": 1})]


def test_the_inner_hook_wins_and_the_outer_comes_back():
    """Blocks nest."""
    seen = []
    with installed(lambda name, /, **_: seen.append(f"outer {name}")):
        with installed(lambda name, /, **_: seen.append(f"inner {name}")):
            checkpoint("read")
        checkpoint("read")
    assert seen == ["inner read", "outer read"]


def test_another_thread_is_not_hooked():
    """A buyer's hook doesn't stop another buyer."""
    seen: list[str] = []
    with installed(lambda name, /, **_: seen.append(name)):
        thread = threading.Thread(target=checkpoint, args=("read",))
        thread.start()
        thread.join()
    assert seen == []


def test_what_a_hook_raises_ends_the_sale():
    """A test ends a buyer by raising; the hook is gone afterwards."""

    def refuse(name: str, /, **facts: object) -> None:
        raise RuntimeError(name)

    with pytest.raises(RuntimeError, match="read"), installed(refuse):
        checkpoint("read")
    checkpoint("read")
