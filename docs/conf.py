"""Sphinx: `make docs`."""

project = "Holdfast"
author = "The Holdfast developers"
copyright = "2026, The Holdfast developers"
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Holdfast"
exclude_patterns = ["requirements.txt", "draw.py"]
