"""What is said of a kind of payload. Who reads it needs neither the kind nor PyTorch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Description:
    """A kind of payload in words, for those who decide whether to let it leave."""

    meaning: str
    short: str
    is_template: bool
    is_figure: bool
