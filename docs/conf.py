"""How Sphinx builds this documentation: `make docs`."""

import tomllib
from pathlib import Path

project = "personae"
release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
version = release
copyright = "the authors of personae"  # noqa: A001 - Sphinx calls it so

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"personae {release}"
html_show_sphinx = False
