"""Numbers that agree with their nouns, and names that are text."""


def counted(number: int, one: str, many: str = "") -> str:
    """`1 image`, `1,200 identities`; `many` says what several are called where it is neither -s nor -ies."""
    usual = f"{one[:-1]}ies" if one.endswith("y") else f"{one}s"
    return f"{number:,} {one if number == 1 else many or usual}"


def as_text(name: str) -> str:
    """The name of a file or folder, which may be any bytes: those that are no text are shown by their codes."""
    return name.encode(errors="backslashreplace").decode()
