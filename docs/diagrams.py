"""The diagrams of the pages, drawn with `shapes`."""

from __future__ import annotations

from shapes import Row, Span, arrow, box, svg, timeline, words


def release() -> str:
    """Release before and after COMMIT."""
    early = (
        Row(
            "request A",
            [Span(0, 3, "lock", "bad"), Span(3, 6.5, "transaction open, not committed", "work")],
            [(6.5, "COMMIT: stock 9", "quiet")],
        ),
        Row(
            "request B",
            [Span(1, 3, "waits", "wait"), Span(3, 8, "lock", "bad")],
            [(3.4, "reads stock 10, which A has sold: it is sold twice", "bad")],
        ),
    )
    late = (
        Row(
            "request A",
            [Span(0, 6, "lock around the transaction", "good")],
            [(4.6, "COMMIT: stock 9", "quiet")],
        ),
        Row(
            "request B",
            [Span(1, 6, "waits", "wait"), Span(6, 9, "lock", "good")],
            [(6.2, "reads stock 9", "good")],
        ),
    )
    label = "Released before COMMIT, B reads the old stock; released after it, B reads what A has written."
    shapes = [*timeline(8, "Released before COMMIT", early), *timeline(190, "Released after COMMIT", late)]
    return svg(700, 375, label, shapes)


def guarded() -> str:
    """Three requests for one order: the first has the lock, the second waits, the third is refused."""
    rows = (
        Row(
            "request A",
            [Span(0, 1, "lock", "good"), Span(1, 4, "BEGIN … COMMIT", "work"), Span(4, 4.5, "", "good")],
            [(3.3, "released after COMMIT", "good")],
        ),
        Row(
            "request B",
            [
                Span(0.6, 4.5, "wait=3: waits in the queue", "wait"),
                Span(4.5, 9, "lock, BEGIN … COMMIT", "good"),
            ],
            [(4.5, "reads what A has committed", "good")],
        ),
        Row(
            "request C", [Span(1.6, 2.6, "wait=0", "wait")], [(2.6, "409 Conflict, with Retry-After", "bad")]
        ),
    )
    label = "A has the lock until after its COMMIT; B waits in the queue and comes next; C doesn't wait: 409."
    return svg(700, 240, label, timeline(8, "Three requests for one order", rows))


def handoff() -> str:
    """The queue of a lock, and how a release hands it to the first waiter."""
    rows = (
        Row(
            "holder",
            [Span(0, 3, "lock", "good")],
            [(2.2, "one script: release, and give it to the first", "quiet")],
        ),
        Row(
            "first waiter",
            [Span(0.5, 3, "subscribed, sleeps", "wait"), Span(3, 6, "lock", "good")],
            [(3, "is notified: the lock is its own already", "good")],
        ),
        Row(
            "second waiter",
            [Span(1, 6, "subscribed, sleeps", "wait"), Span(6, 9, "lock", "good")],
            [(6, "in the order they came", "quiet")],
        ),
        Row("newcomer", [Span(3.4, 9, "asks right after the release: queues behind them", "wait")]),
    )
    label = "A release hands the lock to the first waiter in the queue, in the same step; a newcomer waits."
    return svg(700, 300, label, timeline(8, "The queue, and the handoff", rows))


def fence() -> str:
    """The fence, with a holder that is paused beyond its lease."""
    rows = (
        Row(
            "holder A",
            [
                Span(0, 1.6, "lock, token 33", "good"),
                Span(1.6, 6.4, "paused: its lease ends meanwhile", "wait"),
                Span(6.4, 8.4, "wakes up, writes", "bad"),
            ],
            [(6.4, "writes with token 33", "bad")],
        ),
        Row(
            "holder B",
            [Span(3, 6, "lock, token 34; writes", "good")],
            [(3, "the fence is set to 34", "good")],
        ),
        Row(
            "database",
            [Span(0, 3, "fence: 33"), Span(3, 9, "fence: 34")],
            [(6.4, "refuses 33: StaleFencingToken", "good")],
        ),
    )
    label = (
        "A holder that was paused beyond its lease writes with token 33; the database knows 34 and refuses."
    )
    return svg(700, 240, label, timeline(8, "A paused holder, and the fence", rows))


LADDER = (
    ("Is all that must wait one transaction?", "locks of the transaction", "the commit is the release"),
    ("Do you have Redis?", "Redis", "with Sentinel or Cluster another takes over"),
    ("An ensemble of ZooKeeper or etcd?", "ZooKeeper, etcd", "a majority agrees on each lock"),
    ("PostgreSQL, and many locks a second?", "advisory locks", "a killed holder's lock is free at once"),
    ("Any database?", "rows of the database", "nothing new to run"),
    ("Tests, a script, one process?", "memory", "needs nothing"),
)


def engines() -> str:
    """Which engine to take: the first question that is answered by yes."""
    shapes = []
    for number, (question, engine, because) in enumerate(LADDER):
        y = 16 + 62 * number
        shapes += [box(16, y, 300, question), arrow((316, y + 19), (384, y + 19), "yes", -12)]
        shapes.append(box(384, y, 300, engine, because, "good"))
        if number:
            shapes.append(arrow((60, y - 24), (60, y), "no", 8, 4))
    label = "; ".join(f"{question} {engine}" for question, engine, _ in LADDER)
    return svg(700, 16 + 62 * len(LADDER), label, shapes)


def lease() -> str:
    """The states of a lease."""
    shapes = [
        box(40, 60, 190, "held", "until its local deadline", "good"),
        box(400, 60, 200, "unknown", "the backend doesn't answer"),
        box(400, 170, 200, "lost", "never held again", "bad"),
        box(40, 170, 190, "released", "the lock is free"),
        words(16, 30, "acquired", "quiet"),
        arrow((70, 24), (100, 60)),
        arrow((230, 72), (400, 72), "no answer", -26),
        arrow((400, 90), (230, 90), "answers in time", -42, 16),
        arrow((520, 98), (520, 170), "its deadline passes", 8, 4),
        arrow((230, 98), (400, 180), "taken away, or forgotten", -120, 22),
        arrow((90, 98), (90, 170), "release()", 8, 4),
        words(
            16,
            232,
            "ensure_held() passes while it is held or unknown; lost is LockLost, released is LockNotOwned.",
            "quiet",
        ),
    ]
    return svg(700, 245, "The states of a lease: held, unknown, lost, released.", shapes)


def order() -> str:
    """The states of an order."""
    shapes = [
        box(20, 100, 120, "placed", "units are taken", "work"),
        box(220, 20, 120, "paid", "", "good"),
        box(430, 20, 130, "partly shipped", "", "good"),
        box(660, 20, 120, "shipped", "", "good"),
        box(660, 110, 120, "returned", "units came back"),
        box(220, 110, 120, "cancelled", "units go back"),
        box(220, 190, 120, "expired", "units go back"),
        arrow((140, 105), (220, 45), "pay", -30, -6),
        arrow((140, 122), (220, 128), "cancel", -10, -6),
        arrow((140, 135), (220, 200), "the window ends", -100, 18),
        arrow((280, 58), (280, 110), "cancel", 8, 5),
        arrow((340, 39), (430, 39), "ship some", -28, -8),
        arrow((560, 39), (660, 39), "ship the rest", -40, -8),
        arrow((720, 58), (720, 110), "take back", 8, 5),
    ]
    label = (
        "A placed order is paid, cancelled or expires; a paid one is cancelled or shipped, at once or in"
        " parts, and may come back."
    )
    return svg(800, 250, label, shapes)


DIAGRAMS = {
    "guarded.svg": guarded,
    "handoff.svg": handoff,
    "release.svg": release,
    "fence.svg": fence,
    "engines.svg": engines,
    "lease.svg": lease,
    "order.svg": order,
}
