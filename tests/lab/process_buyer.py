"""A buyer in a process of its own: `python -m tests.lab.process_buyer STRATEGY SKU QUANTITY STOP`.

It prints each checkpoint to standard output, waits at STOP for a line, and says at last how
it ended.
"""

from __future__ import annotations

import sys


def main(strategy: str, sku: str, quantity: str, stop: str) -> None:
    """Buy, stopping once at `stop`."""
    import django

    django.setup()

    from orders.lab.checkpoints import installed
    from tests.lab.products import sell

    stops = [stop]

    def hook(name: str, /, **facts: object) -> None:
        print(name, flush=True)
        if stops and stops[0] == name:
            stops.clear()
            sys.stdin.readline()

    with installed(hook):
        try:
            sell(strategy, {sku: int(quantity)})
        except Exception as error:
            print(type(error).__name__, flush=True)
        else:
            print("sold", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
