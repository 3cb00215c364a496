"""A newcomer's way from the wheel alone: what the tutorial tells to type prints what it shows."""

from pathlib import Path

import pytest

from tests.docs.walkthrough import TUTORIAL, Step, steps_of, tutorial_reader


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_the_tutorial_does_what_it_says(wheel: Path, tmp_path: Path) -> None:
    """From an empty folder to a protected view and task, a look at the held lock and a test of it."""
    # The two that must meet meet on a busy machine too: the first one works until the second was refused.
    work = {
        "time.sleep(3)  #": work_until(tmp_path / "Second-terminal.log", '" 409 '),
        'time.sleep(3)\n    return f"captured': work_until(tmp_path / "Third-terminal.log", "s: None")
        + '\n    return f"captured',
    }
    with tutorial_reader(wheel, tmp_path, replaced=work) as reader:
        for page in TUTORIAL:
            reader.follow(page.read_text())
        assert reader.typed > 15


def work_until(log: Path, text: str) -> str:
    """Return a statement that goes on until a terminal shows this."""
    return f"while {text!r} not in open({str(log)!r}).read(): time.sleep(0.05)  #"


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
