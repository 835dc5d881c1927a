"""Numbers that agree with their nouns, and names that are text."""


def counted(number: int, one: str, many: str = "") -> str:
    """`1 image`, `1,200 identities`; `many` says what several are called where it is neither -s nor -ies."""
    usual = f"{one[:-1]}ies" if one.endswith("y") else f"{one}s"
    return f"{number:,} {one if number == 1 else many or usual}"


def number_of_images(least: int, most: int | None) -> str:
    """`5 images or more`, `2 to 4 images`; nothing where any number will do."""
    if most is None:
        return f"{counted(least, 'image')} or more" if least > 1 else ""
    if least == most:
        return counted(most, "image")
    return f"{least} to {counted(most, 'image')}" if least > 1 else f"at most {counted(most, 'image')}"


def as_text(name: str) -> str:
    """The name of a file or folder, which may be any bytes: those that are no text are shown by their codes."""
    return name.encode(errors="backslashreplace").decode()
