"""A slow network: what a host sends and receives arrives late, and some of it never.

The kernel may have no netem, so a thread carries the frames between the host's cable and the bridge.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from itertools import count
from typing import Final

from histories.hosts import SWITCH, enter, switch

DELAY: Final = (0.02, 0.3)
"""The least and the most seconds that a frame is kept back; a later one may arrive first."""

LOSS: Final = 0.05
SOL_PACKET: Final = 263
PACKET_VNET_HDR: Final = 15
"""Frames come and go with the kernel's notes on checksums and on sizes that it has yet to cut."""

ALL_PROTOCOLS: Final = 3


@contextmanager
def slowed(host: str, chance: random.Random) -> Generator[None]:
    """Keep back and lose what `host` sends and receives, until the block ends."""
    late = f"{host}-late"
    switch(
        f"link set {host} nomaster",
        f"link add {late} up type veth peer name {host}-in",
        f"link set {host}-in up master bridge",
    )
    begun, stop = threading.Event(), threading.Event()
    own = random.Random(chance.random())  # noqa: S311 - a test's
    carrier = threading.Thread(target=_carry, args=(host, late, own, begun, stop))
    carrier.start()
    try:
        begun.wait(10)
        yield
    finally:
        stop.set()
        carrier.join()
        switch(f"link delete {late}", f"link set {host} master bridge")


def _carry(
    host: str, late: str, chance: random.Random, begun: threading.Event, stop: threading.Event
) -> None:
    enter(SWITCH)
    with _frames_of(host) as near, _frames_of(late) as far:
        beyond = {near: far, far: near}
        kept: list[tuple[float, int, socket.socket, bytes]] = []
        numbers = count()
        begun.set()
        while not stop.is_set():
            for source in select.select(beyond, [], [], 0.005)[0]:
                frame, (_, _, kind, *_) = source.recvfrom(1 << 17)
                if kind != socket.PACKET_OUTGOING and chance.random() >= LOSS:
                    due = time.monotonic() + chance.uniform(*DELAY)
                    heappush(kept, (due, next(numbers), beyond[source], frame))
            while kept and kept[0][0] <= time.monotonic():
                _, _, target, frame = heappop(kept)
                with suppress(OSError):  # a full queue loses it, as a switch does
                    target.send(frame)


def _frames_of(link: str) -> socket.socket:
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    frames.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    frames.bind((link, 0))
    return frames
