"""The lock file holds what the requirements ask for."""

from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT


def lines(name: str) -> list[Requirement]:
    """The requirements of a file."""
    found = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return [Requirement(line) for line in found if line and not line.startswith("-r")]


LOCKED = {canonicalize_name(line.name): line for line in lines("requirements.lock")}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_requirement_is_locked_within_its_range(name):
    """Each named package is in the lock, at a version that the range allows (make lock renews it)."""
    for wanted in lines(name):
        locked = LOCKED[canonicalize_name(wanted.name)]
        (pin,) = locked.specifier
        assert pin.operator == "=="
        assert pin.version in wanted.specifier, wanted.name


def test_this_environment_is_the_locked_one():
    """What these tests run on is what the lock says."""
    here = [locked for locked in LOCKED.values() if locked.marker is None or locked.marker.evaluate()]
    installed = {locked.name: f"=={version(locked.name)}" for locked in here}
    assert installed == {locked.name: str(locked.specifier) for locked in here}
