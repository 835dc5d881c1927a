"""Binary attributes named as in CelebA, read off the same numbers that the pictures are drawn from.

As with CelebA's annotators, hair under a hat is still reported, as are features turned away from the camera;
glasses, hats, smiles and open mouths are those of the image.
"""

import torch
from torch import Tensor

from personae.data.synthetic.capture import Shot
from personae.data.synthetic.person import (
    BALD,
    BLACK,
    BLOND,
    BROWN,
    FULL_BEARD,
    GOATEE,
    GRAY,
    MOUSTACHE,
    SHAVEN,
    Person,
)
from personae.data.synthetic.visible import Visible

ATTRIBUTES: tuple[str, ...] = (
    "Male",
    "Eyeglasses",
    "Wearing_Hat",
    "Young",
    "Black_Hair",
    "Blond_Hair",
    "Brown_Hair",
    "Gray_Hair",
    "Bald",
    "Bangs",
    "Goatee",
    "Mustache",
    "No_Beard",
    "Bushy_Eyebrows",
    "Chubby",
    "Oval_Face",
    "Rosy_Cheeks",
    "Pale_Skin",
    "Smiling",
    "Mouth_Slightly_Open",
    "Wearing_Lipstick",
    "Bags_Under_Eyes",
)


def describe(person: Person, shot: Shot, seen: Visible) -> Tensor:
    """A bool tensor [N, len(ATTRIBUTES)]."""
    hair, head, beard = person.hair, person.head, person.beard
    haired = hair.style != BALD
    columns = {
        "Male": person.male > 0,
        "Eyeglasses": seen.glasses,
        "Wearing_Hat": seen.hat,
        "Young": person.age < 0.6,
        "Black_Hair": haired & (hair.kind == BLACK),
        "Blond_Hair": haired & (hair.kind == BLOND),
        "Brown_Hair": haired & (hair.kind == BROWN),
        "Gray_Hair": haired & (hair.kind == GRAY),
        "Bald": ~haired,
        "Bangs": haired & (hair.fringe > 0),
        "Goatee": beard.kind == GOATEE,
        "Mustache": (beard.kind == MOUSTACHE) | (beard.kind == FULL_BEARD),
        "No_Beard": (beard.kind == SHAVEN) | (beard.kind == MOUSTACHE),
        "Bushy_Eyebrows": person.brows.thickness > 0.045,
        "Chubby": person.fat > 1.0,
        "Oval_Face": (head.jaw < -0.02) & (head.chin < -0.04) & (person.fat < 0.8),
        "Rosy_Cheeks": person.skin.rosy > 0,
        "Pale_Skin": person.skin.tone < 0.2,
        "Smiling": shot.expression.smile > 0.4,
        "Mouth_Slightly_Open": shot.expression.mouth_open > 0.03,
        "Wearing_Lipstick": person.mouth.lipstick,
        "Bags_Under_Eyes": person.eyes.bags > 0.5,
    }
    return torch.stack([columns[name] for name in ATTRIBUTES], -1)
