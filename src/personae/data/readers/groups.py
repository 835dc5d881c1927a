"""Groups of people, each with pairs of its own, as RFW has them: `data/GROUP/NAME/NAME_0001.jpg` and
`txts/GROUP/GROUP_pairs.txt`, with lines like LFW's and no header."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from personae.data.readers.listing import Listing, in_natural_order, path_inside
from personae.data.readers.official import ListedPair, by_kind, lfw_image, list_images, read_lines
from personae.errors import DataError


def find_groups(root: Path) -> list[str]:
    """The groups that have a list of pairs."""
    lists = root.glob("txts/*/*_pairs.txt")
    return in_natural_order(file.parent.name for file in lists if file.name == f"{file.parent.name}_pairs.txt")


def read_groups(root: Path) -> dict[str, list[ListedPair]]:
    """The pairs of each group, fold after fold."""
    return {name: _pairs(root, name) for name in find_groups(root)}


def list_groups(root: Path) -> Listing:
    """The images of all groups; the group of an image is its domain, and its people are its own."""
    pairs = [pair for group in read_groups(root).values() for pair in group]
    listing = list_images(root, pairs, lambda path: "/".join(path.parts[1:3]))
    domains = np.array([PurePosixPath(path).parts[1] for path in listing.paths])
    return replace(listing, columns={"domain": domains})


def _pairs(root: Path, group: str) -> list[ListedPair]:
    file = root / "txts" / group / f"{group}_pairs.txt"
    pairs = []
    for where, words in read_lines(file):
        if len(words) not in (3, 4):
            raise DataError(f"{where}: {len(words)} words; write `name n m` or `name n other m`")
        other = words[0] if len(words) == 3 else words[2]
        left, right = (
            path_inside(f"data/{group}/{lfw_image(name, number, where)}.jpg", where)
            for name, number in ((words[0], words[1]), (other, words[-1]))
        )
        pairs.append(ListedPair(left, right, len(words) == 3))
    if not pairs:
        raise DataError(f"{file}: lists no pairs; download it again")
    return by_kind(pairs, file)
