"""How much of the documentation is checked: `python -m tests.docs.counts`."""

from __future__ import annotations

import os
import re
from collections import Counter

import django


def counts() -> dict[str, int]:
    """Return what the tests of this folder look at, by kind."""
    from locking import conf
    from tests.docs import test_pictures, test_shop_settings
    from tests.docs.pages import LINK, PAGES, SPOKEN, all_blocks
    from tests.docs.test_blocks import UNCHECKED, command_lines, kind_of
    from tests.docs.test_docstrings import examples
    from tests.docs.test_names import DOTTED, FILE, TEXT, command_sections, documented, shown_options

    kinds = Counter(kind_of(block) or "with a reason" for block in all_blocks())
    return {
        "pages": len(PAGES),
        **{f"blocks, {kind}": number for kind, number in sorted(kinds.items())},
        "blocks that nothing checks": len(UNCHECKED),
        "command lines": len(command_lines()),
        "links and anchors": sum(len(LINK.findall(text)) for text in TEXT.values()),
        "dotted paths": sum(len(DOTTED.findall(TEXT[page])) for page in SPOKEN),
        "paths of files": sum(len(FILE.findall(TEXT[page])) for page in SPOKEN),
        "names of tests": sum(len(re.findall(r"`test_\w+`", TEXT[page])) for page in SPOKEN),
        "entries of the API": len(documented()),
        "settings and options": len(conf.DEFAULTS)
        + len(test_shop_settings.TYPES)
        + sum(map(len, shown_options().values())),
        "pictures": len(test_pictures.shown()),
        "examples of docstrings": len(examples()),
        "commands": len(command_sections()),
    }


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    for what, number in counts().items():
        print(f"{number:6}  {what}")
