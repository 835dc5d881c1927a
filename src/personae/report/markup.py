"""HTML in which every text is escaped unless it was built here."""

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is HTML already; any other text is escaped when it gets into an element."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | bool) -> Markup:
    """An element. `class_` stands for class, `aria_label` for aria-label; True gives an attribute without a value."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not False
    )
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def section(title: str, name: str, *content: str) -> Markup:
    """Nothing at all when there is no content."""
    if not any(content):
        return Markup()
    return tag("section", tag("h2", title, id=name), *content, aria_labelledby=name)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, *, texts: int = 1) -> Markup:
    """The first `texts` columns hold words, the others numbers."""
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(_data(text, at >= texts) for at, text in enumerate(row[1:], 1)))
        for row in rows
    ]
    header = tag(
        "tr", *(tag("th", title, scope="col", class_="text" if at < texts else "") for at, title in enumerate(head))
    )
    content = tag("table", tag("thead", header), tag("tbody", *body))
    scrolling = tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)
    # Outside of what scrolls, so that a phone shows all of it.
    return join(scrolling, tag("p", caption, class_="caption"))


def _data(text: str, number: bool) -> Markup:
    return tag("td", text, class_="number" if number else "text")
