"""`python -m tests.scratch.tutorial`: follow the tutorial from the wheel in an empty folder; time each step.

Needs `make wheels`. The times are the machine's: a reader adds his reading and typing.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests import ROOT
from tests.docs.walkthrough import TUTORIAL, Reader, Step, tutorial_reader


class TimedReader(Reader):
    """Prints the seconds of each command."""

    def _type(self, step: Step) -> None:
        begun = time.monotonic()
        super()._type(step)
        print(f"{time.monotonic() - begun:7.1f} s  $ {step.command}", flush=True)

    def _leave_running(self, name: str, step: Step) -> None:
        begun = time.monotonic()
        super()._leave_running(name, step)
        print(f"{time.monotonic() - begun:7.1f} s  $ {step.command}  (until it is ready)", flush=True)


def main(wheel: Path) -> None:
    """Follow each page, and print the sum of its commands."""
    with (
        tempfile.TemporaryDirectory() as made,
        tutorial_reader(wheel, Path(made), kind=TimedReader) as reader,
    ):
        for page in TUTORIAL:
            begun = time.monotonic()
            reader.follow(page.read_text())
            print(f"{time.monotonic() - begun:7.1f} s  {page.name}, all of it", flush=True)


if __name__ == "__main__":
    wheels = [Path(argument) for argument in sys.argv[1:]] or sorted(ROOT.glob("dist/django_holdfast-*.whl"))
    if not wheels:
        sys.exit("make wheels builds the wheel that this needs")
    main(wheels[-1])
