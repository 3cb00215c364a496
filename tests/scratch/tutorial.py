"""`python -m tests.scratch.tutorial`: follow the tutorial from the wheel in an empty folder; time each step.

Needs `make wheels`. The times are the machine's: a reader adds his reading and typing.
"""

import sys
import tempfile
import time
from pathlib import Path

from redis import Redis

from config.embedded.server import redis_program
from tests import ROOT
from tests.docs.walkthrough import Reader, Step, environment_of
from tests.support.processes import ServerProcess, free_ports, until

TUTORIAL = ROOT / "docs" / "library" / "tutorial"
PAGES = ("first-view.md", "task-and-test.md")


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
    redis, web = free_ports(2)
    replaced = {"127.0.0.1:6379": f"127.0.0.1:{redis}", "127.0.0.1:8000": f"127.0.0.1:{web}"}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "mysite")
        folder.mkdir()
        server = ServerProcess(
            Path(made, "redis"), [str(redis_program()), "--port", str(redis), "--save", ""]
        )
        client = Redis(port=redis)

        def pause() -> None:
            until(lambda: client.exists("lock:order:42"), "a request that holds the lock")

        try:
            environment = environment_of(wheel, ROOT / "requirements.lock")
            with TimedReader(folder, environment, replaced, pause) as reader:
                for page in PAGES:
                    begun = time.monotonic()
                    reader.follow((TUTORIAL / page).read_text())
                    print(f"{time.monotonic() - begun:7.1f} s  {page}, all of it", flush=True)
        finally:
            client.close()
            server.kill()


if __name__ == "__main__":
    wheels = [Path(argument) for argument in sys.argv[1:]] or sorted(ROOT.glob("dist/django_holdfast-*.whl"))
    if not wheels:
        sys.exit("make wheels builds the wheel that this needs")
    main(wheels[-1])
