"""Synthetic faces: numbers, pictures and attributes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from personae.data.synthetic import (
    ATTRIBUTES,
    CAPTURES,
    DOMAINS,
    PEOPLE,
    Capture,
    Domain,
    People,
    attributes,
    render,
    scene,
)
from personae.data.synthetic.people import draw_people
from personae.data.synthetic.random import Stream, rotation
from personae.data.synthetic.windows import Window
from personae.errors import ConfigError

STUDIO = DOMAINS["studio"]
TABLE_II = {
    "Male": "Gender",
    "Eyeglasses": "Glasses",
    "Wearing_Hat": "Hat",
    "Young": "Old/Yng",
    "Black_Hair": "Hair",
    "Blond_Hair": "Hair",
    "Brown_Hair": "Hair",
    "Gray_Hair": "Hair",
    "Bald": "Attr",
    "Chubby": "Attr",
    "Oval_Face": "Attr",
    "Rosy_Cheeks": "Attr",
    "Goatee": "Attr",
    "Mustache": "Attr",
    "No_Beard": "Attr",
    "Smiling": "Attr",
    "Bushy_Eyebrows": "Attr",
    "Wearing_Lipstick": "Attr",
    "Bags_Under_Eyes": "Attr",
}


def grid(people: int, images: int) -> tuple[Tensor, Tensor]:
    return torch.arange(people).repeat_interleave(images), torch.arange(images).repeat(people)


def column(values: Tensor, name: str) -> Tensor:
    return values[:, ATTRIBUTES.index(name)]


def captured(**changes: object) -> Domain:
    """The studio's people before a changed camera of the same name, which draws the same random numbers."""
    return replace(STUDIO, capture=replace(STUDIO.capture, **changes))  # type: ignore[arg-type]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class TestRandomNumbers:
    def test_uniform_numbers_are_even_and_unrelated(self) -> None:
        draw = Stream(3, "people", torch.arange(20_000))
        first, second = draw.uniform(), draw.uniform()
        shifted = Stream(4, "people", torch.arange(20_000)).uniform()
        counts = torch.histc(first, 20, 0.0, 1.0)
        assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-squared with 19 degrees of freedom
        neighbours = torch.stack([first[:-1], first[1:]])
        for pair in (torch.stack([first, second]), torch.stack([first, shifted]), neighbours):
            assert abs(torch.corrcoef(pair)[0, 1]) < 0.03

    def test_more_draws_than_a_block_do_not_repeat(self) -> None:
        draw = Stream(0, torch.arange(50))
        assert len(torch.stack([draw.bits() for _ in range(100)]).unique()) == 5000

    def test_normal_numbers_are_standard_and_bounded(self) -> None:
        normal = Stream(1, torch.arange(50_000)).normal()
        assert abs(normal.mean()) < 0.02
        assert abs(normal.std() - 1) < 0.02
        assert normal.abs().max() <= 3

    def test_choice_keeps_to_the_odds(self) -> None:
        chosen = Stream(1, torch.arange(40_000)).choice([1.0, 0.0, 2.0, 1.0])
        shares = torch.bincount(chosen, minlength=4) / len(chosen)
        assert torch.allclose(shares, torch.tensor([0.25, 0.0, 0.5, 0.25]), atol=0.015)

    def test_directions_lie_on_the_circle_all_round(self) -> None:
        cosine, sine = Stream(1, torch.arange(4000)).direction()
        assert torch.allclose(cosine**2 + sine**2, torch.ones(4000, dtype=torch.float64))
        for right in (cosine > 0, cosine < 0):
            for upper in (sine > 0, sine < 0):
                assert 0.2 < (right & upper).double().mean() < 0.3

    def test_rotation_is_by_twice_the_angle_of_the_tangent(self) -> None:
        angle = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)
        cosine, sine = rotation(torch.tan(angle / 2))
        assert torch.allclose(cosine, angle.cos())
        assert torch.allclose(sine, angle.sin())


class TestPictures:
    @pytest.mark.parametrize(("domain", "size"), [("studio", 64), ("entrance", 50), ("webcam", 33)])
    def test_the_same_in_any_batch_in_any_order_on_any_threads(self, domain: str, size: int, threads: None) -> None:
        people, images = torch.arange(37) % 11, torch.arange(37)
        torch.set_num_threads(1)
        together = render(people, images, seed=3, size=size, domain=domain)
        order = torch.randperm(37, generator=torch.Generator().manual_seed(0))
        torch.set_num_threads(3)
        shuffled = render(people[order], images[order], seed=3, size=size, domain=domain)
        triples = [
            render(people[part], images[part], seed=3, size=size, domain=domain) for part in torch.arange(37).split(3)
        ]
        assert torch.equal(together[order], shuffled)
        assert torch.equal(together, torch.cat(triples))
        alone = render(people[20:21], images[20:21], seed=3, size=size, domain=domain)
        assert torch.equal(together[20:21], alone)

    def test_shape_and_type(self) -> None:
        picture = render(torch.tensor([5]), torch.tensor([2]), seed=0, size=40)
        assert picture.shape == (1, 40, 40, 3)
        assert picture.dtype == torch.uint8
        assert picture.float().std() > 10

    def test_nobody(self) -> None:
        nobody = torch.zeros(0, dtype=torch.int64)
        assert render(nobody, nobody, seed=0).shape == (0, 64, 64, 3)
        assert attributes(nobody, nobody, seed=0).shape == (0, len(ATTRIBUTES))

    def test_seed_person_image_and_domain_all_matter(self) -> None:
        def picture(person: int, image: int, seed: int, domain: str = "studio") -> Tensor:
            return render(torch.tensor([person]), torch.tensor([image]), seed=seed, size=32, domain=domain).float()

        base = picture(1, 1, 1)
        for other in (picture(2, 1, 1), picture(1, 2, 1), picture(1, 1, 2), picture(1, 1, 1, "entrance")):
            assert (base - other).abs().mean() > 5

    def test_images_of_a_person_are_more_alike_than_those_of_two(self) -> None:
        """Without nuisances, what is left is the person."""
        still = {"yaw": 3.0, "pitch": 3.0, "roll": 1.0, "jitter": 0.01, "light_side": 5.0}
        plain = {"ambient": (0.5, 0.5), "contrast": (1.0, 1.0), "noise": (0.0, 0.0), "blur": (0.0, 0.0)}
        calm = captured(**still, **plain, gray_rate=0.0, occlusion_rate=0.0, hat_rate=0.0)
        people, images = grid(40, 2)
        faces = render(people, images, seed=1, domain=calm)[:, 20:54, 12:52].float()
        first, second = faces[::2].flatten(1), faces[1::2].flatten(1)
        distances = torch.cdist(first - first.mean(1, True), second - second.mean(1, True))
        rank = (distances < distances.diagonal().unsqueeze(1)).sum(1)
        assert (rank == 0).double().mean() > 0.15  # one in forty by chance

    def test_windows_hold_their_features(self, monkeypatch: pytest.MonkeyPatch) -> None:
        people, images = grid(30, 2)
        windowed = {name: render(people, images, seed=5, domain=name).int() for name in DOMAINS}
        monkeypatch.setattr(scene, "EXTENTS", dict.fromkeys(scene.EXTENTS, (9.0, 9.0)))
        for name, faces in windowed.items():
            differing = (faces - render(people, images, seed=5, domain=name).int()).abs() > 2
            assert differing.double().mean() < 2e-4

    @pytest.mark.parametrize("domain", DOMAINS)
    def test_all_pixels_are_computed_on_the_asked_device(self, domain: str) -> None:
        """Tensors on the meta device refuse to be mixed with those on another."""
        people, images = grid(100, 3)
        drawn = render(people, images, seed=2, domain=domain, device="meta")
        assert drawn.is_meta
        assert drawn.shape == (300, 64, 64, 3)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.parametrize("domain", DOMAINS)
    def test_a_gpu_draws_the_same_within_one_level(self, domain: str) -> None:
        people, images = grid(20, 5)
        here = render(people, images, seed=2, domain=domain)
        there = render(people, images, seed=2, domain=domain, device="cuda")
        assert there.is_cuda
        assert (here.int() - there.cpu().int()).abs().max() <= 1

    def test_gray_images_have_no_colour(self) -> None:
        gray = render(*grid(3, 3), seed=0, domain=captured(gray_rate=1.0, noise=(0.0, 0.0)))
        assert torch.equal(gray[..., 0], gray[..., 1])
        assert torch.equal(gray[..., 0], gray[..., 2])

    def test_blur_takes_the_edges_away(self) -> None:
        def roughness(blur: float) -> float:
            faces = render(*grid(6, 3), seed=0, domain=captured(blur=(blur, blur), noise=(0.0, 0.0))).float()
            return float((faces[:, 1:] - faces[:, :-1]).abs().mean())

        assert roughness(0.03) < 0.8 * roughness(0.0)

    def test_noise_has_the_asked_strength_and_no_mean(self) -> None:
        plain, noisy = (
            render(*grid(8, 2), seed=0, domain=captured(contrast=(0.6, 0.6), noise=(level, level))).float()
            for level in (0.0, 0.03)
        )
        inside = (plain > 30) & (plain < 225)
        difference = (noisy - plain)[inside]
        assert abs(difference.mean()) < 0.1
        assert 0.9 < difference.std() / (0.03 * 255) < 1.1


class TestPeopleAndCapture:
    def test_the_same_people_before_another_camera(self) -> None:
        people, images = grid(60, 3)
        moved = Domain("moved", STUDIO.people, DOMAINS["entrance"].capture)
        here, there = (attributes(people, images, seed=4, domain=domain) for domain in (STUDIO, moved))
        fixed = [name for name in ATTRIBUTES if name not in _OF_THE_IMAGE]
        for name in fixed:
            assert torch.equal(column(here, name), column(there, name)), name
        assert not torch.equal(column(here, "Smiling"), column(there, "Smiling"))

    def test_other_people_before_the_same_camera(self) -> None:
        people, images = grid(60, 3)
        others = Domain("others", DOMAINS["webcam"].people, STUDIO.capture)
        here, there = (attributes(people, images, seed=4, domain=domain) for domain in (STUDIO, others))
        for name in ("Smiling", "Mouth_Slightly_Open"):
            assert torch.equal(column(here, name), column(there, name))
        assert not torch.equal(column(here, "Male"), column(there, "Male"))

    def test_any_people_before_any_camera_by_name(self) -> None:
        people, images = grid(6, 2)
        for one in PEOPLE.values():
            for other in CAPTURES.values():
                pair = f"{one.name}-{other.name}"
                named = render(people, images, seed=4, size=16, domain=pair)
                assert torch.equal(named, render(people, images, seed=4, size=16, domain=Domain(pair, one, other)))
        assert torch.equal(
            render(people, images, seed=4, size=16, domain="valley-studio"),
            render(people, images, seed=4, size=16, domain="studio"),
        )
        for wrong in ("islands", "islands-nowhere", "nobody-studio", "islands-studio-"):
            with pytest.raises(ConfigError, match=f"unknown domain '{wrong}'"):
                render(people, images, seed=4, domain=wrong)

    def test_variety_scales_how_much_people_differ_in_a_part_of_the_face(self) -> None:
        numbers = torch.arange(4000)
        usual = draw_people(numbers, 4, People("any"))
        alike = draw_people(numbers, 4, People("any", outline_variety=0.5, upper_variety=0.25, lower_variety=2.0))
        for part, name, factor in (
            ("head", "temple", 0.5),
            ("eyes", "x", 0.25),
            ("brows", "tilt", 0.25),
            ("nose", "y", 2.0),
            ("mouth", "width", 2.0),
        ):
            before, after = (getattr(getattr(people, part), name) for people in (usual, alike))
            assert float(after.std() / before.std()) == pytest.approx(factor, rel=0.05), (part, name)
            assert float(after.mean()) == pytest.approx(float(before.mean()), abs=0.01)

    def test_what_belongs_to_a_person_stays(self) -> None:
        people, images = grid(50, 8)
        by_person = attributes(people, images, seed=4).view(50, 8, -1)
        for index, name in enumerate(ATTRIBUTES):
            constant = bool((by_person[:, :1, index] == by_person[:, :, index]).all())
            assert constant == (name not in _OF_THE_IMAGE), name

    def test_domains_differ_in_people_and_in_capture(self) -> None:
        assert len({domain.people for domain in DOMAINS.values()}) >= 2
        assert len({domain.capture for domain in DOMAINS.values()}) >= 2
        assert all(domain.name == name for name, domain in DOMAINS.items())

    def test_the_closest_capture_bounds_the_scale(self) -> None:
        assert Capture("any", crop=1.0).closest == pytest.approx(0.82)


_OF_THE_IMAGE = {"Eyeglasses", "Wearing_Hat", "Smiling", "Mouth_Slightly_Open"}


class TestAttributes:
    @pytest.mark.parametrize(("name", "rate"), [("Eyeglasses", "glasses_rate"), ("Wearing_Hat", "hat_rate")])
    def test_accessories_are_seen_where_they_are_reported(self, name: str, rate: str) -> None:
        people, images = grid(60, 3)
        without = captured(**{rate: 0.0})
        worn = column(attributes(people, images, seed=6), name)
        assert worn.any()
        assert not column(attributes(people, images, seed=6, domain=without), name).any()
        changed = (render(people, images, seed=6) != render(people, images, seed=6, domain=without)).flatten(1)
        assert changed[worn].double().mean(1).min() > 0.005
        assert not changed[~worn].any()

    def test_facial_hair_is_seen_where_it_is_reported(self) -> None:
        people, images = grid(100, 1)
        grown = captured(occlusion_rate=0.0)
        shaven = replace(grown, people=replace(STUDIO.people, beard_rate=0.0))
        labels = attributes(people, images, seed=6, domain=grown)
        bearded = ~column(labels, "No_Beard") | column(labels, "Mustache")
        with_it, without = (render(people, images, seed=6, domain=domain) for domain in (grown, shaven))
        changed = (with_it != without).flatten(1)
        assert bearded.sum() > 5
        assert changed[bearded].any(1).all()
        assert not changed[~bearded].any()

    @pytest.mark.parametrize("domain", DOMAINS)
    def test_rates(self, domain: str) -> None:
        people = torch.arange(4000)
        rates = dict(zip(ATTRIBUTES, attributes(people, people, seed=1, domain=domain).double().mean(0), strict=True))
        described = DOMAINS[domain].people
        assert rates["Male"] == pytest.approx(described.male_rate, abs=0.03)
        owners = described.glasses_rate * DOMAINS[domain].capture.glasses_rate
        assert rates["Eyeglasses"] == pytest.approx(owners, abs=0.03)
        assert rates["Wearing_Hat"] == pytest.approx(DOMAINS[domain].capture.hat_rate, abs=0.02)
        for name in TABLE_II:
            assert 0.02 < rates[name] < 0.95, name

    def test_every_client_of_table_ii_finds_its_people(self) -> None:
        people = torch.arange(30_000)
        values = attributes(people, people, seed=1)
        for wanted, unwanted in _CLIENTS:
            match = torch.ones(len(people), dtype=torch.bool)
            for name in wanted:
                match &= column(values, name)
            for name in unwanted:
                match &= ~column(values, name)
            assert match.sum() >= 10, (wanted, unwanted)


_BARE = ["Eyeglasses", "Wearing_Hat"]
_CLIENTS: list[tuple[list[str], list[str]]] = [
    (["Male", "Eyeglasses", "Young"], ["Wearing_Hat"]),
    (["Male", "Eyeglasses", "Gray_Hair"], ["Wearing_Hat", "Young"]),
    (["Male", "Eyeglasses", "Chubby"], ["Wearing_Hat", "Young"]),
    (["Eyeglasses"], ["Male", "Wearing_Hat"]),
    (["Wearing_Hat"], ["Eyeglasses"]),
    (["Blond_Hair", "Oval_Face", "Rosy_Cheeks"], ["Male", *_BARE]),
    (["Male", "Goatee", "Smiling"], ["Bald", *_BARE]),
    (["Male", "Bald"], ["Goatee", *_BARE]),
    (["Male", "Gray_Hair"], ["Goatee", *_BARE]),
    (["Male", "Bushy_Eyebrows"], ["Young", "Goatee", *_BARE]),
    (["Male", "Bushy_Eyebrows"], ["Young", "Black_Hair", "Goatee", *_BARE]),
    (["Male", "Bushy_Eyebrows"], ["Young", "Blond_Hair", "Goatee", *_BARE]),
    (["Male", "Young", "Brown_Hair", "Bushy_Eyebrows"], ["Goatee", *_BARE]),
    (["Oval_Face", "Wearing_Lipstick"], ["Male", "Young", "Rosy_Cheeks", *_BARE]),
    (["Young", "Wearing_Lipstick", "Rosy_Cheeks"], ["Male", "Oval_Face", *_BARE]),
    (["Male", "Mustache"], ["Bushy_Eyebrows", *_BARE]),
    (["Male", "Young", "Bushy_Eyebrows"], ["No_Beard", "Mustache", *_BARE]),
    (["Male", "Young"], ["No_Beard", "Mustache", "Bushy_Eyebrows", *_BARE]),
    (["Male", "Young", "Black_Hair", "Bags_Under_Eyes"], _BARE),
    (["Bags_Under_Eyes"], ["Male", "Young", *_BARE]),
]


class TestArguments:
    def test_an_unknown_domain_names_the_known_ones(self) -> None:
        one = torch.tensor([1])
        for call in (render, attributes):
            with pytest.raises(ConfigError, match=r"moon.*studio, entrance, webcam"):
                call(one, one, seed=0, domain="moon")

    @pytest.mark.parametrize("images", [torch.arange(3), torch.zeros(2, 1, dtype=torch.int64)])
    def test_vectors_of_equal_length(self, images: Tensor) -> None:
        for call in (render, attributes):
            with pytest.raises(ValueError, match="equal length"):
                call(torch.arange(2), images, seed=0)

    def test_a_face_needs_some_pixels(self) -> None:
        with pytest.raises(ValueError, match="at least 8"):
            render(torch.tensor([1]), torch.tensor([1]), seed=0, size=4)


def test_window_takes_and_puts_back_each_images_rectangle() -> None:
    fields = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    window = Window.around(torch.tensor([[-1.0, 1.0], [0.25, 0.0]]), (0.2, 0.4), 8)
    assert (window.width, window.height) == (3, 5)
    part = window.take(fields)
    assert torch.equal(part[0], fields[0, :, 0:5, 0:3])
    top, left = int(window.top[1]), int(window.left[1])
    assert torch.equal(part[1], fields[1, :, top : top + 5, left : left + 3])
    changed = fields.clone()
    window.put(changed, part + 1000)
    assert int((changed != fields).sum()) == part.numel()
    assert torch.equal(window.take(changed), part + 1000)
