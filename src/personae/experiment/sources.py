"""The schema of `[data]`: where faces come from."""

from typing import Self

from pydantic import Field, model_validator

from personae.data.handling import Crop, Handling, Missed
from personae.data.levels import Level
from personae.data.readers.naming import named_layout
from personae.data.readers.official import LAYOUTS
from personae.data.synthetic import CAPTURES, DOMAINS, PEOPLE
from personae.data.synthetic.domains import pair_name
from personae.experiment.explain import nearest
from personae.experiment.section import SYNTHETIC, Section

OF_FILES = frozenset(
    ("min_images", "max_images", "skip_unreadable", "crop", "missed", "as_they_are", "layout", "identity_level")
)


class Source(Section):
    """Where faces come from: rendered ones, or a folder, zip or list on disk; optionally some of the identities.

    `parts` joins several sources into one set instead: each name becomes a domain with people of its own.
    """

    source: str = SYNTHETIC  # "synthetic", or a path
    identities: int | None = Field(default=None, ge=1, lt=2**31)  # how many; by default all there are
    first: int = Field(default=0, ge=0, lt=2**62)  # number of the first one
    images: int = Field(default=20, ge=1, lt=2**31)  # synthetic: images of each identity
    domain: str = next(iter(DOMAINS))  # synthetic: ready-made people, captured how
    people: str | None = None  # synthetic: other people, with `capture` in place of `domain`
    capture: str | None = None  # synthetic: how they are captured
    seed: int | None = Field(default=None, ge=0)  # synthetic: by default the experiment's seed
    min_images: int = Field(default=1, ge=1)  # files: leave identities with fewer images out
    max_images: int | None = Field(default=None, ge=1)  # files: leave identities with more images out
    skip_unreadable: bool = False  # files: leave images that cannot be used out
    unlabelled: bool = False  # nobody says who is on the images; labels that are there all the same are not used
    crop: Crop | None = None  # files: cut the face out of each photograph, with the extra `align`
    missed: Missed | None = None  # with crop: what becomes of photographs in which no face is found
    as_they_are: bool = False  # files: take images that cannot be aligned faces by their sizes
    layout: str | None = None  # files: the benchmark that is meant where a folder has the lists of several
    identity_level: Level | None = None  # files: of folders in folders, those that are people
    parts: dict[str, "Source"] | None = None  # several sources as one set; each name becomes a domain

    def all_parts(self) -> dict[str, "Source"]:
        """The sources that are joined, by name; this one alone, without a name, where nothing is joined."""
        return {"": self} if self.parts is None else self.parts

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        # What says the same as nothing may stand there: the resolved form of an experiment is one, too.
        given = {name for name, known in type(self).model_fields.items() if getattr(self, name) != known.default}
        if self.parts is not None:
            if len(self.parts) < 2 or given != {"parts"}:
                raise ValueError("parts are two sources or more, and go with nothing else")
            return self
        if self.source == SYNTHETIC:
            wrong = given & OF_FILES
            if self.identities is None:
                raise ValueError("synthetic faces need the number of identities")
            self._check_domain(given)
        else:
            wrong = given & {"images", "domain", "people", "capture", "seed"}
            if self.unlabelled and not wrong:
                wrong = given & {"identities", "first", "min_images", "max_images"}
        if wrong:
            files = "unlabelled faces from files" if self.unlabelled else "faces from files"
            kind = "synthetic faces" if self.source == SYNTHETIC else files
            raise ValueError(f"{', '.join(sorted(wrong))} does not go with {kind}; leave it out")
        if self.max_images is not None and self.max_images < self.min_images:
            raise ValueError("max_images is below min_images")
        if self.missed and not self.crop:
            raise ValueError("missed goes with crop, which looks for faces")
        if self.layout is not None and named_layout(self.layout) is None:
            raise ValueError(
                f"no layout is called {self.layout!r}{nearest(self.layout, [each.name for each in LAYOUTS])}"
            )
        return self

    def _check_domain(self, given: set[str]) -> None:
        apart = given & {"people", "capture"}
        if apart and ("domain" in given or len(apart) == 1):
            raise ValueError("people and capture go together, in place of domain")
        if self.people is not None and self.capture is not None:
            for known, name, what in ((PEOPLE, self.people, "people"), (CAPTURES, self.capture, "capture")):
                if name not in known:
                    raise ValueError(f"no {what} is called {name!r}{nearest(name, known)}")

    @property
    def rendered(self) -> str:
        """Synthetic: the name of the domain that is rendered."""
        return self.domain if self.people is None or self.capture is None else pair_name(self.people, self.capture)

    def handled(self, handling: Handling) -> "Source":
        """The same faces from files, their images handled so where that says anything."""
        if self.parts is not None:
            return self.model_copy(
                update={"parts": {name: part.handled(handling) for name, part in self.parts.items()}}
            )
        if self.source == SYNTHETIC:
            return self
        return self.model_copy(update={option: value for option, value in handling.items() if value})


class Data(Section):
    """The faces of an experiment. The three sets should have no person in common."""

    public: Source | None = None  # the server may have these
    private: Source | None = None  # divided among the clients; over a network they have their own
    heldout: Source | None = None  # nobody trains on these

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        for name in ("public", "heldout"):
            source: Source | None = getattr(self, name)
            if source is not None and any(part.unlabelled for part in source.all_parts().values()):
                raise ValueError(f"{name} faces must be labelled; unlabelled goes with private ones")
        return self
