"""Locks in asyncio and the sockets of each event loop."""

from __future__ import annotations

import asyncio
import gc

import psutil

from locking import get_lock


def open_sockets() -> int:
    """How many sockets this process has open."""
    return len(psutil.Process().net_connections(kind="all"))


def test_a_loop_leaves_no_socket_behind() -> None:
    """What a loop has opened serves its later calls too, and is closed when the loop shuts down."""
    counts: list[int] = []

    async def use() -> None:
        for _ in range(3):
            async with get_lock("a"):
                gc.collect()
            counts.append(open_sockets())

    gc.collect()  # what earlier tests have left
    before = open_sockets()
    asyncio.run(use())
    assert counts[0] == counts[1] == counts[2]
    assert open_sockets() == before
