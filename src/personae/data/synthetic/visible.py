"""What there is to be seen in each image: people's things and marks, as far as the capture shows them."""

from dataclasses import dataclass

from torch import Tensor

from personae.data.synthetic.capture import Capture, Shot
from personae.data.synthetic.latents import Latents
from personae.data.synthetic.person import BALD, LONG, Person


@dataclass(frozen=True)
class Visible(Latents):
    """Bool vectors that stay on the CPU, where they decide which images a layer is drawn for."""

    hair: Tensor
    long_hair: Tensor
    facial_hair: Tensor
    freckles: Tensor
    wrinkles: Tensor
    glasses: Tensor
    hat: Tensor
    brim: Tensor
    occluder: Tensor
    gray: Tensor


def visible(person: Person, shot: Shot, capture: Capture) -> Visible:
    hat = shot.hat < capture.hat_rate * person.hat.liking
    return Visible(
        hair=person.hair.style != BALD,
        long_hair=person.hair.style == LONG,
        facial_hair=person.male > 0,
        freckles=person.skin.freckles > 0,
        wrinkles=person.skin.wrinkles > 0,
        glasses=person.glasses.owned & (shot.glasses < capture.glasses_rate),
        hat=hat,
        brim=hat & person.hat.brim,
        occluder=shot.occluder.shown,
        gray=shot.film.gray,
    )
