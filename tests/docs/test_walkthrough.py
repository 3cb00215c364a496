"""A newcomer's way from the wheel alone: what the tutorial tells to type prints what it shows."""

import socket
from pathlib import Path

import pytest
from redis import Redis

from config.embedded.server import redis_program
from tests import ROOT
from tests.docs.walkthrough import Reader, Step, environment_of, steps_of
from tests.support.processes import ServerProcess, until

TUTORIAL = ROOT / "docs" / "library" / "tutorial"
PAGES = ("first-view.md", "task-and-test.md")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_the_tutorial_does_what_it_says(wheel: Path, tmp_path: Path) -> None:
    """From an empty folder to a protected view and task, a look at the held lock and a test of it."""
    folder = tmp_path / "mysite"
    folder.mkdir()
    redis, web = free_port(), free_port()
    server = ServerProcess(tmp_path / "redis", [str(redis_program()), "--port", str(redis), "--save", ""])
    replaced = {
        "127.0.0.1:6379": f"127.0.0.1:{redis}",
        "127.0.0.1:8000": f"127.0.0.1:{web}",
        "time.sleep(3)": "time.sleep(6)",  # the two that must meet also meet on a busy machine
    }
    client = Redis(port=redis)

    def pause() -> None:
        until(lambda: client.exists("lock:order:42"), "a request that holds the lock")

    try:
        environment = environment_of(wheel, ROOT / "requirements.lock")
        with Reader(folder, environment, replaced, pause) as reader:
            for page in PAGES:
                reader.follow((TUTORIAL / page).read_text())
            assert reader.typed > 15
    finally:
        client.close()
        server.kill()


def test_a_console_is_read_as_commands_and_outputs() -> None:
    """Each line with a dollar begins a step; what follows is its output."""
    assert steps_of("$ a\none\ntwo\n$ b\n") == [Step("a", "one\ntwo\n"), Step("b", "")]


@pytest.mark.parametrize(
    ("expected", "printed", "shown"),
    [
        ("one\n", "one\n", True),
        ("one\n", "two\n", False),
        ("one\n", "one\ntwo\n", False),
        ("", "", True),
        ("", "surprise\n", False),
        ("a … c\n", "a b c\n", True),
        ("…\nlast\n", "first\nlast\n", True),
        ("…\nlast\n", "last\nmore\n", False),
    ],
)
def test_an_output_is_compared(expected: str, printed: str, shown: bool) -> None:
    """An ellipsis stands for anything in a line, a line of it for any lines; all else must be the same."""
    assert Step("command", expected).shown(printed) is shown
