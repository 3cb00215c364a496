"""Sphinx: `make docs`."""

import html
import re
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

sys.path.insert(0, str(Path(__file__).parent.parent))
settings.configure(  # enough for autodoc to import `locking` and `inventory`: no server, no shop
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "locking", "inventory"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    LOCKING={"default": {"BACKEND": "locking.backends.memory.MemoryBackend"}},
)
django.setup()

project = "Holdfast"
author = "The Holdfast developers"
copyright = "2026, The Holdfast developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["requirements.txt"]
nitpicky = False
suppress_warnings = ["ref.python"]  # two packages, each with a `Held` and a `Busy` in its type hints

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
LAB = "../../lab/{{path}}"  # from a page of docs/shop/…/; written beside the pages once they are built
myst_url_schemes = {"http": None, "https": None, "mailto": None, "lab": LAB}

default_role = "code"  # docstrings say `name`, as Markdown does
autodoc_typehints = "description"
autodoc_typehints_description_target = "all"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_use_legacy_class_based = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Options", "params_style")]

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

locale_dirs = ["locale"]
gettext_compact = False  # a catalog for each page: those that are translated have one
gettext_location = False

html_theme = "furo"
html_title = "Holdfast"
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "scorer.js")  # Sphinx looks for it from where it was started

SENTINELS = {"UNSET": "<of the alias>", "DEFAULT_ALIAS": "'default'", "NO_HOLD": "0.0"}
"""Defaults as a reader understands them, by the names that the code has for them."""

OVERLOADED = ("locking.transactions.decorator",)
"""Modules whose overloads are for type checkers: a reader needs one signature per function."""

FIRST = {
    "locking.distributed_lock": "*, key=None, wait=UNSET, ttl=UNSET, on_conflict=UNSET, **options",
    "locking.get_lock": "*names, wait=UNSET, ttl=UNSET, **options",
    "locking.locked_transaction": "*names, wait=UNSET, ttl=UNSET, using='default', **options",
    "locking.get_read_lock": "name, *, wait=UNSET, ttl=UNSET, **options",
    "locking.get_write_lock": "name, *, wait=UNSET, ttl=UNSET, **options",
    "locking.get_semaphore": "name, permits, *, wait=UNSET, ttl=UNSET, **options",
}
"""Signatures that begin with what one needs; the table of arguments has the rest."""

ERROR_IN_LINE = re.compile(r"(?<=[.;]) (?=(?:Lock|Backend|Stale|Value|Type)\w*: )")


def show_defaults(
    app: Sphinx, what: str, name: str, obj: object, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Write the value of a default in a signature, not its name, and the options that are needed most."""
    signature = f"({FIRST[name]})" if name in FIRST else signature
    for internal, shown in SENTINELS.items():
        signature = signature and re.sub(rf"=\s?{internal}\b", f"={shown}", signature)
    return signature, returned


def hide_overloads(app: Sphinx) -> None:
    """Forget the overloads, before autodoc writes a signature for each."""
    for name in OVERLOADED:
        analyzer = ModuleAnalyzer.for_module(name)
        analyzer.analyze()
        analyzer.overloads.clear()


def split_errors(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Give each error of a docstring's `Raises:` an entry of its own."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith("    ") and len(parts := ERROR_IN_LINE.split(lines[number])) > 1:
            indent = " " * (len(parts[0]) - len(parts[0].lstrip()))
            lines[number : number + 1] = [parts[0], *(indent + part for part in parts[1:])]


def show_types(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Give the options of the decorator types and defaults: its signature has only `**options`."""
    if name != "locking.distributed_lock":
        return
    decorator = import_module("locking.transactions.decorator")
    for field in fields(decorator.Options):
        kind = str(field.type).replace(" | Unset", "")
        default = "of the alias" if field.default is decorator.UNSET else repr(field.default)
        for number, line in enumerate(lines):
            if line.startswith(f"    {field.name}: "):
                lines[number] = line.replace(": ", f" ({kind}, default {default}): ", 1)


def hide_unset(app: Sphinx, doctree: nodes.document) -> None:
    """Take `Unset` out of shown types: leaving an argument out is what it means."""
    for shown in [node for node in doctree.findall(nodes.Text) if node.endswith("Unset")]:
        kind = shown.parent if isinstance(shown.parent.parent, nodes.paragraph) else shown.parent.parent
        if isinstance(kind.parent, nodes.paragraph):
            at = kind.parent.index(kind)
            del kind.parent[at - 1 : at + 1]  # with the bar before it


def put_in(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Put drawn pictures into the page: in a file of their own they couldn't follow the chosen mode."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".svg" and 'class="drawn"' in (drawing := path.read_text()):
            label = html.escape(image.get("alt", ""))
            frame = f'<div class="picture" role="region" tabindex="0" aria-label="{label}">{drawing}</div>'
            image.replace_self(nodes.raw("", frame, format="html"))


def follow_mode(app: Sphinx, doctree: nodes.document) -> None:
    """Show a screenshot in the chosen mode: the page names `x-light.png`, beside which lies `x-dark.png`."""
    if app.builder.format != "html":
        return
    for image in [node for node in doctree.findall(nodes.image) if node["uri"].endswith("-light.png")]:
        dark = image.deepcopy()
        dark["uri"] = image["uri"].replace("-light.png", "-dark.png")
        for shown, mode in ((image, "only-light"), (dark, "only-dark")):
            shown["classes"].append(mode)
        image.parent.insert(image.parent.index(image) + 1, dark)


REPAIRS = (
    ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="All pages">'),
    ('<aside class="toc-drawer', '<aside aria-label="This page" class="toc-drawer'),
    ('<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">'),
    ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
    ('<th class="head"></th>', '<td class="head"></td>'),
    ('<th class="head"><p></p></th>', '<td class="head"></td>'),
    ('<div id="search-results"></div>', '<h1>Search</h1><div id="search-results"></div>'),
)
"""What readers of the screen miss in the theme's HTML, and what they need."""


def repair(app: Sphinx, failed: Exception | None) -> None:
    """Put what the theme leaves out into the written pages; a page that has it already stays as it is."""
    if app.builder.format != "html" or failed:
        return
    for path in Path(app.outdir).rglob("*.html"):
        page = text = path.read_text()
        for found, needed in REPAIRS:
            text = text if needed in text else text.replace(found, needed)
        if text != page:
            path.write_text(text)


def setup(app: Sphinx) -> None:
    """Have the docstrings shown as a reader needs them."""
    app.connect("builder-inited", hide_overloads)
    app.connect("autodoc-process-signature", show_defaults)
    app.connect("autodoc-process-docstring", split_errors, priority=400)
    app.connect("autodoc-process-docstring", show_types, priority=400)
    app.connect("doctree-read", hide_unset)
    app.connect("doctree-read", follow_mode, priority=400)  # before Sphinx collects the images
    app.connect("doctree-resolved", put_in)
    app.connect("build-finished", repair)
