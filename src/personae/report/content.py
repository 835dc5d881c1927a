"""What a page is made of, before it becomes HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from personae.report.plots import Key


@dataclass(frozen=True)
class Table:
    """The first `texts` columns hold words, the others numbers.

    `best` and `worst` are cells to mark, by row and column.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    texts: int = 1
    best: frozenset[tuple[int, int]] = frozenset()
    worst: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Figure:
    """A picture with a summary for those who cannot see it; with a `metric`, it shows when that is chosen."""

    title: str
    svg: Markup
    summary: str
    keys: Sequence[Key] = ()
    metric: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Note:
    """A line that a reader should see; `kind` is notice, warning or alarm."""

    text: str
    kind: str = "notice"
    subject: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a page that can be folded, with a line that says what is in it."""

    name: str
    title: str
    lead: str = ""
    notes: Sequence[Note] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[tuple[str, Table]] = ()
    """Long tables with a title, folded once more."""
    code: str = ""

    def __bool__(self) -> bool:
        return bool(self.notes or self.figures or self.tables or self.code)


@dataclass(frozen=True)
class Bar:
    """A part of a whole, such as one kind of payload."""

    label: str
    amount: str
    share: float
    explanation: str = ""


@dataclass(frozen=True)
class Track:
    """A figure on an axis that its column shares: everything in percent of the axis' length."""

    text: str
    dot: float
    low: float | None
    high: float | None
    best: bool


@dataclass(frozen=True)
class ChartRow:
    """A method in the chart: a track or none for each question, then cells."""

    label: str
    role: str
    series: int
    personal: bool
    tracks: Sequence[Track | None]
    cells: Sequence[tuple[str, bool]]
    gain: str
    noise: bool


@dataclass(frozen=True)
class Chart:
    """Methods as rows, with intervals."""

    questions: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[ChartRow]
    axis: tuple[str, str]
    baseline: str
    caption: str
