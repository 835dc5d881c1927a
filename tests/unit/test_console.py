"""What a client, a file or a server says reaches the terminal as text, and never as a command to it."""

import io

import pytest
from rich.table import Table

from personae.console import Harmless

HOSTILE = "\x1b]0;owned\x07\x1b[2Jbob\x9b31m\u202egnp.exe\r\x08"


def shown(*things: object) -> str:
    console = Harmless(file=io.StringIO(), force_terminal=True, color_system=None, highlight=False, width=200)
    for thing in things:
        console.print(thing, markup=False, soft_wrap=True)
    return console.file.getvalue()


@pytest.mark.parametrize("where", ["line", "cell", "title"])
def test_escape_codes_are_shown_and_not_obeyed(where: str):
    table = Table("client", title=HOSTILE if where == "title" else None)
    table.add_row(HOSTILE if where == "cell" else "ann")
    found = shown(HOSTILE if where == "line" else table)
    for code in ("\x1b", "\x07", "\x9b", "\u202e", "\r", "\x08"):
        assert code not in found
    assert "owned" in found


def test_other_text_is_what_it_was():
    text = "Zoë, 李: 50% \u2192 [b]not bold[/b]\n\ttwo"
    assert shown(text) == text.expandtabs(8) + "\n"
