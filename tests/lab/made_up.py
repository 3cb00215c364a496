"""Results of races that never were, for what is said and drawn of them."""

from orders.lab.race.result import Result


def result(name="lost_update", sound=False, samples=(), **figures):
    """A race with made-up figures."""
    made_up = {
        "strategy": name, "processes": 2, "initial": 2, "due": 2, "sold": 4, "left": 1, "refused": 0,
        "errors": 0, "problems": (), "disagreements": (), "retries": 0, "queries": 5, "tries": 1,
        "seconds": 0.5, "p50_ms": 20.0, "p95_ms": 30.0, "p99_ms": 40.0,
        "evidence": "buyers 1 and 2 both <b>read</b> 2.",
    }  # fmt: skip
    return Result(name=name, sound=sound, samples=tuple(samples), **made_up | figures)
