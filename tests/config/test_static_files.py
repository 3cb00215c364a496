"""Several servers of one checkout start at the same time outside DEBUG, and others serve meanwhile."""

from __future__ import annotations

import json
import threading

import pytest
from django.contrib.staticfiles.storage import ManifestFilesMixin
from django.core.files.storage import FileSystemStorage
from django.core.management import call_command

from config.serve import MANIFEST, publish_static
from locking.testing.contract.base import begin


@pytest.fixture
def root(settings, tmp_path):
    """The folder that is served, of a project with two files that refer to each other."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "shop.css").write_text("body { background: url(mug.svg) } /* " + "long " * 200 + "*/")
    (source / "mug.svg").write_text("<svg/>")
    settings.STATICFILES_DIRS = [source]
    settings.STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
    backend = "whitenoise.storage.CompressedManifestStaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": backend}}
    settings.STATIC_ROOT = str(tmp_path / "served" / "static")
    return tmp_path / "served" / "static"


def is_whole(root):
    """Whether all that the manifest names can be read, with its compressed copy."""
    if not (root / MANIFEST).exists():
        return False
    names = json.loads((root / MANIFEST).read_text())["paths"].values()
    files = [root / name for name in names] + [root / f"{name}.gz" for name in names if "shop" in name]
    return len(files) == 3 and all(file.exists() and file.stat().st_size for file in files)


@pytest.fixture
def watched(root, monkeypatch):
    """Look at the folder, as a server would that serves from it, at each step of a collection."""
    publish_static(root)
    steps = []

    def before(name):
        step = getattr(FileSystemStorage, name)

        def watched_step(storage, *args, **kwargs):
            steps.append(is_whole(root))
            return step(storage, *args, **kwargs)

        monkeypatch.setattr(FileSystemStorage, name, watched_step)

    before("_save")
    before("delete")
    return steps


def test_a_server_that_serves_misses_no_file_while_another_starts(root, watched):
    """At each step of the second collection everything that the first one published is there."""
    publish_static(root)
    assert len(watched) > 4
    assert all(watched)
    assert is_whole(root)


def test_collecting_in_place_is_found_out(root, watched):
    """A mutant: plain `collectstatic` takes files away that are served, if only for a moment."""
    call_command("collectstatic", interactive=False, verbosity=0)
    assert not all(watched)


def test_servers_that_start_together_both_publish(root, monkeypatch):
    """Two collections that meet before their last step both succeed, and leave one whole folder."""
    together = threading.Barrier(2)
    save = ManifestFilesMixin.save_manifest

    def save_together(storage):
        together.wait(60)
        save(storage)

    monkeypatch.setattr(ManifestFilesMixin, "save_manifest", save_together)
    for server in [begin(lambda: publish_static(root)) for _ in range(2)]:
        server.result(timeout=60)
    assert is_whole(root)
    assert [path.name for path in root.parent.iterdir()] == ["static"]
