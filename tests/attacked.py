"""Something to attack: people whose photographs differ from each other, a small network, and what clients sent."""

import torch

from personae.algorithms import FedPE
from personae.core.backbone import Backbone
from personae.core.payload import Count, ModelState, Scalars
from personae.core.rng import generator
from personae.models import Network
from personae.privacy.audit import Evidence, Person, Received

SIZE = 32


def faces(people, images, seed=0, noise=40.0):
    """uint8 [people, images, SIZE, SIZE, 3]: a blurred pattern for each person, and noise on each photograph."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(people, 3, 4, 4, generator=random) * 255
    pattern = torch.nn.functional.interpolate(coarse, size=SIZE, mode="bilinear")[:, None]
    drawn = pattern + noise * torch.randn(people, images, 3, SIZE, SIZE, generator=random)
    return drawn.clamp(0, 255).to(torch.uint8).permute(0, 1, 3, 4, 2).contiguous()


def evidence(clients=6, each=2, photos=4, width=64, seed=0, noise=40.0, **given):
    """Clients with `each` people of their own, as many shadow people, and an untrained network."""
    module = Network(name="small", embedding=width, height=SIZE, width=SIZE).build(generator(seed, "weights"))
    backbone = Backbone(module, width)
    drawn = faces(2 * clients * each, 2 * photos, seed, noise)
    people = [
        Person(f"p{number}", drawn[number, :photos], f"c{number // each}", drawn[number, photos:])
        for number in range(clients * each)
    ]
    shadows = [Person(f"s{number}", drawn[number, :photos]) for number in range(clients * each, len(drawn))]
    rows = {f"c{number}": [f"p{number * each + k}" for k in range(each)] for number in range(clients)}
    model = backbone.state()
    whole = {"people": people, "shadows": shadows, "rows": rows, "model": model, "begin": model}
    whole |= {"stage": "train", "algorithm": FedPE(), "backbone": backbone, "made_up": True, "seed": seed}
    return Evidence(**whole | given)


def sent(client, begin, flat, round_=1):
    """An update as FedPE's clients send it."""
    up = FedPE.types.up(model=ModelState(begin.layout, flat), samples=Count(1), training=Scalars({"loss": 0.0}))
    return Received(client, round_, begin, up)
