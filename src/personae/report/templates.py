"""HTML from the templates of this package; every text is escaped unless it is markup already."""

from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from personae.report.content import Figure
from personae.report.glossary import anchor, explained, words_in

_PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("personae.report", "pages"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters |= {"explained": explained, "anchor": anchor}


def render(page: str, **content: Any) -> str:
    """A whole page; words of the glossary that it uses come with it."""
    style = Markup(resources.files("personae.report").joinpath("pages/style.css").read_text())
    body = Markup(_PAGES.get_template(f"{page}.html").render(**content))
    return _PAGES.get_template("document.html").render(body=body, style=style, terms=list(words_in(body)), **content)


def metrics_of(figures: list[Figure]) -> list[str]:
    """Those that a reader can choose among, the usual rates first."""
    found = dict.fromkeys(figure.metric for figure in figures if figure.metric)
    return sorted(found, key=lambda metric: not metric.startswith("TAR"))
