"""Pictures of the pages: each is on a page, and each screenshot is there in light and dark."""

import ast
import re
from pathlib import Path

from benchmarks.checkout.growth import AXES
from orders.models import Order
from tests import ROOT
from tests.docs.pages import PAGES

IMAGES = ROOT / "docs" / "images"
SHOWN = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
"""A picture with its text for those who can't see it."""

TAKEN = re.compile(
    r"\b(?:picture\(page, |shot\(page, f?)\"([a-z-]+?)(?:-\{scheme\})?\"|SHOTS\}/([a-z]+)-\{scheme\}"
)


def shown() -> set[str]:
    """Return the pictures that the pages show, a screenshot in both modes."""
    paths = [(page.parent / path).resolve() for page in PAGES for path in SHOWN.findall(page.read_text())]
    names = {path.name for path in paths if path.parent == IMAGES}
    return names | {name.replace("-light.png", "-dark.png") for name in names}


def taken() -> set[str]:
    """Return the names that the tests of `make screenshots` give to their pictures."""
    found = set()
    for path in (ROOT / "tests" / "browser").glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and "screenshots" in map(marker, node.decorator_list):
                source = ast.get_source_segment(path.read_text(), node) or ""
                found |= {one or other for one, other in TAKEN.findall(source)}
    return found


def marker(decorator: ast.expr) -> str:
    """Return the last name of `pytest.mark.name`."""
    return decorator.attr if isinstance(decorator, ast.Attribute) else ""


def test_each_picture_is_on_a_page() -> None:
    """The folder has the pictures that the pages show, and no others."""
    assert {path.name for path in IMAGES.iterdir()} == shown()


def test_each_screenshot_is_taken() -> None:
    """`make screenshots` takes each screenshot of the folder, in light and dark, and no others."""
    shots = {path.name for path in IMAGES.glob("*.png")}
    assert shots == {f"{name}-{mode}.png" for name in taken() for mode in ("light", "dark")}
    assert "-m screenshots" in (ROOT / "Makefile").read_text()


def test_a_page_shows_the_light_screenshot() -> None:
    """A page names the light one: the site puts the dark one beside it, and GitHub shows what is named."""
    assert [page for page in PAGES if "-dark.png" in Path(page).read_text()] == []


def test_the_states_of_an_order_are_drawn() -> None:
    """The picture of an order has each state that an order may have."""
    drawn = (IMAGES / "order.svg").read_text()
    assert [state.label for state in Order.State if f">{state.label}<" not in drawn] == []


def questions() -> list[str]:
    """Return the sections of *How fast is it?* and of the shop's figures, each of which asks a question."""
    pages = ("library/explanation/how-fast.md", "contributing/shop-figures.md")
    return [text for page in pages for text in (ROOT / "docs" / page).read_text().split("\n## ")[1:]]


def test_each_question_has_one_plot_and_one_command() -> None:
    """*How fast is it?* answers each question by one plot and the command that measures it."""
    assert len(questions()) > 5
    for text in questions():
        assert text.partition("\n")[0].endswith("?")
        assert len(SHOWN.findall(text)) == 1, text
        assert len(re.findall(r"^python -m benchmarks\.\w+", text, re.MULTILINE)) == 1, text


def test_the_text_beside_a_plot_quotes_it() -> None:
    """The text quotes two figures of its plot, so a new measurement finds an old text."""
    number = re.compile(r"(?<![\d.,])\d[\d.,]*\d|(?<![\d.,])\d(?![\d.,])")
    for text in questions():
        (path,) = SHOWN.findall(text)
        plot = (ROOT / "docs" / path.replace("../", "")).read_text()
        drawn = re.findall(r'aria-label="([^"]+)"', plot)[0]
        said = re.sub(r"```.*?```|\]\([^)]*\)", "", text.partition(path)[2], flags=re.DOTALL)
        assert len(set(number.findall(said)) & set(number.findall(drawn))) >= 2, text


def test_each_plot_is_on_a_page() -> None:
    """Each plot of the growth measurements is shown, and each that is shown is there."""
    shown = {path for page in PAGES for path in SHOWN.findall(page.read_text()) if "/plots/" in path}
    assert {path.name for path in (ROOT / "docs" / "plots").glob("*.svg")} == {
        Path(path).name for path in shown
    }


def test_the_axes_of_the_growth_commands() -> None:
    """An axis that a command names is one that the benchmark knows."""
    named = re.findall(r'--axis (?:"([^"]+)"|(\w+))', "".join(questions()))
    assert {one or other for one, other in named} == set(AXES)
