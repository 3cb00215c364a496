"""How the documentation is built: by `make docs` and by Read the Docs, in the same way."""

import re
import tomllib

from tests import ROOT

HOSTED = (ROOT / ".readthedocs.yaml").read_text()


def setting(name: str) -> str:
    """Return the value of a key of Read the Docs' file."""
    found = re.search(rf"\b{name}: (.+)$", HOSTED, re.MULTILINE)
    assert found is not None, name
    return found[1]


def test_read_the_docs_has_what_it_needs() -> None:
    """The files and extras that Read the Docs installs are there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\w+", setting("extra_requirements"))) <= set(extras)
    listed = re.findall(r"- requirements: (.+)$", HOSTED, re.MULTILINE)
    assert listed == ["requirements.txt", "docs/requirements.txt"]
    assert all((ROOT / name).is_file() for name in listed)
    assert (ROOT / setting("configuration")).is_file()


def test_a_warning_fails_every_build() -> None:
    """Read the Docs and both builds of `make docs` fail on a warning."""
    assert setting("fail_on_warning") == "true"
    (recipe,) = re.findall(r"^docs: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    builds = re.findall(r"-m sphinx (.*)", recipe)
    assert len(builds) == 2
    assert all(build.startswith("-q -W ") for build in builds)
