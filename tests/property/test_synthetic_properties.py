"""What holds for every synthetic face, whatever its numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.data.synthetic import ATTRIBUTES, DOMAINS, attributes, render

domains = st.sampled_from(list(DOMAINS))
seeds = st.integers(0, 2**64 - 1)
numbers = st.integers(0, 2**62)
keys = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=6)


@settings(max_examples=20, deadline=None)
@given(keys=keys, seed=seeds, size=st.integers(8, 48), domain=domains, data=st.data())
def test_a_picture_depends_on_nothing_beside_it(
    keys: list[tuple[int, int]], seed: int, size: int, domain: str, data: st.DataObject
) -> None:
    people, images = torch.tensor(keys).unbind(1)
    chosen = data.draw(st.integers(0, len(keys) - 1))
    one = slice(chosen, chosen + 1)
    together = render(people, images, seed=seed, size=size, domain=domain)
    assert torch.equal(together[one], render(people[one], images[one], seed=seed, size=size, domain=domain))
    labels = attributes(people, images, seed=seed, domain=domain)
    assert torch.equal(labels[one], attributes(people[one], images[one], seed=seed, domain=domain))


@settings(max_examples=30, deadline=None)
@given(keys=keys, seed=seeds, domain=domains)
def test_attributes_do_not_contradict_each_other(keys: list[tuple[int, int]], seed: int, domain: str) -> None:
    people, images = torch.tensor(keys).unbind(1)
    has = dict(zip(ATTRIBUTES, attributes(people, images, seed=seed, domain=domain).unbind(1), strict=True))
    colours = sum(has[name].long() for name in ("Black_Hair", "Blond_Hair", "Brown_Hair", "Gray_Hair"))
    assert (colours <= (~has["Bald"]).long()).all()
    assert not (has["Goatee"] & has["No_Beard"]).any()
    assert not ((has["Goatee"] | has["Mustache"] | ~has["No_Beard"] | has["Bald"]) & ~has["Male"]).any()
    assert not (has["Wearing_Lipstick"] & has["Male"]).any()
    assert not (has["Oval_Face"] & has["Chubby"]).any()
