"""A company with an office in each of several cities, and what it does with personae from photographs to a login."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import Result
from lab import PERSONAE, Processes
from typer.testing import CliRunner

from personae.cli import app
from personae.deployment.processes import free_port
from personae.errors import NO_MATCH, DataError, PersonaeError
from photographs import BROKEN, EMPTY, NAMES, people_of, photographs_of, take_photographs

SIDE = 48  # pixels of an aligned face
RATE = 0.4  # of false accepts; an office with three people has too few pairs for less
SMALL = (
    'network={name="small",embedding=32,height=48,width=48}',
    "data.heldout.identities=30",
    "data.heldout.images=8",
    "data.heldout.first=5000",
    "evaluation.folds=2",
    "evaluation.pairs_per_fold=60",
    'stages.shared.algorithm={name="fedpe",training={lr=0.1,batch_size=8,epochs=10}}',
    'stages.own.algorithm={name="adapt",use_public_faces=false,training={lr=0.02,batch_size=8,epochs=5}}',
)


@dataclass
class Company(Processes):
    """Everything happens in a folder, through the command line, as its people would type it."""

    offices: Sequence[str] = ("Berlin", "Lisbon", "Oslo")
    people: int = 3
    images: int = 6
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        super().__post_init__()
        for number, office in enumerate(self.offices):
            cache = self.folder / "cache"
            take_photographs(self.photographs(office), cache, first=10 * number, people=self.people, images=self.images)

    @property
    def out(self) -> Path:
        return self.folder / "server" / "run"

    def photographs(self, office: str) -> Path:
        return self.folder / office / "Fotos der Mitarbeiter"

    def aligned(self, office: str) -> Path:
        return self.folder / office / "aligned"

    def home(self, office: str) -> Path:
        return self.folder / office / "home"

    def type(self, *words: object, code: int = 0) -> str:
        """What a command prints, and that it ends as it should."""
        return self._typed(words, code).output

    def ask(self, *words: object, code: int | None = 0) -> Any:
        """The same as data."""
        return json.loads(self._typed((*words, "--json"), code).stdout)

    def _typed(self, words: Sequence[object], code: int | None) -> Result:
        told = CliRunner().invoke(app, [*map(str, words)], env={"PERSONAE_CACHE": str(self.folder / "cache")})
        ended = told.exception.exit_code if isinstance(told.exception, PersonaeError) else told.exit_code
        allowed = (code,) if code is not None else (0, NO_MATCH)
        assert ended in allowed, (words, told.exit_code, told.output, told.exception)
        return told

    def align(self, office: str) -> None:
        """Look at the photographs, align them, look again."""
        seen = self.type("data", "inspect", self.photographs(office))
        assert Path(BROKEN).name in seen
        assert EMPTY in seen
        self.type("data", "align", self.photographs(office), self.aligned(office), "--height", SIDE, "--width", SIDE)
        with (self.aligned(office) / "misses.csv").open(newline="", encoding="utf-8") as file:
            missed = [row["path"] for row in csv.DictReader(file)]
        assert BROKEN in missed
        assert len(missed) <= self.people * self.images // 3  # the detector learnt from photographs, not from these
        found = self.type("data", "inspect", self.aligned(office))
        assert f"{self.people} identities" in found or f"{self.people} people" in found

    def serve(self, *settings: str, wait: float = 3600) -> None:
        self.type("certs", self.folder / "certs", *(word for office in self.offices for word in ("--client", office)))
        words = ["serve", "deploy/offices", "--certs", self.folder / "certs" / "server", "--host", "127.0.0.1"]
        words += ["--port", self.port, "--out", self.out, "--deadline", 120, "--wait", wait, "--resume"]
        words += [word for setting in (*SMALL, *settings) for word in ("--set", setting)]
        self.start("serve", [*PERSONAE, *map(str, words)])

    def join(self, office: str, *options: str) -> None:
        words = [
            "join",
            "--accept",
            "all",
            "--server",
            f"127.0.0.1:{self.port}",
            "--data",
            self.aligned(office),
            "--home",
        ]
        words += [self.home(office), "--certs", self.folder / "certs" / office, *options]
        self.start(office, [*PERSONAE, *map(str, words)])

    def rounds(self) -> list[dict[str, Any]]:
        """Those that are complete at the server."""
        path = self.out / "metrics.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [event for event in events if event["event"] == "round"]

    def use(self, office: str) -> None:
        """Export both models, make people known with the personal one, and recognise them in their photographs."""
        files = {kind: self.folder / office / f"{kind}.safetensors" for kind in ("shared", "personal")}
        evaluate = ("--on", f"own={self.aligned(office)}", "--far", RATE, "--resamples", 0)
        self.type("export", self.home(office), "--to", files["shared"], *evaluate)
        self.type("export", self.home(office), "--personal", "--to", files["personal"], *evaluate)
        assert files["shared"].read_bytes() != files["personal"].read_bytes()
        self._cards_are_of_this_office_alone(office)
        gallery = self.folder / office / "people.db"
        model = ("--model", files["personal"], "--gallery", gallery)
        self.type("enroll", self.aligned(office), *model, "--far", RATE)
        known = self.ask("gallery", "list", gallery)["people"]
        assert sorted(known) == people_of(self.photographs(office))
        answers = [right for person in known for right in self.recognised(office, person, model)]
        assert sum(answers) >= 0.8 * len(answers), answers  # one in `people` would be right by chance

    def recognised(self, office: str, person: str, model: Sequence[object]) -> list[bool]:
        """Which photographs of a person are taken for theirs; a broken one among them keeps nobody from an answer."""
        aligned = {path.name.removesuffix(".jpg") for path in (self.aligned(office) / "images" / person).iterdir()}
        photographs = [
            path
            for path in photographs_of(self.photographs(office), person)
            if {path.name, path.name.removesuffix(path.suffix)} & aligned
        ]
        assert len(photographs) >= self.images // 3
        broken = [path for path in (self.photographs(office) / person).iterdir() if path.name == Path(BROKEN).name]
        code = DataError.exit_code if broken else None  # or somebody is not recognised, which is for the model to say
        told = self.ask("identify", *photographs, *broken, *model, "--align", code=code)
        assert list(told["unusable"]) == [str(path) for path in broken]
        assert list(told["matches"]) == [str(path) for path in photographs]
        return [match["accepted"] and match["name"] == person for match in told["matches"].values()]

    def _cards_are_of_this_office_alone(self, office: str) -> None:
        for path in (self.folder / office).glob("*.card.*"):
            text = path.read_text(encoding="utf-8")
            for other in self.offices:
                assert other == office or not re.search(rf"\b{other}\b", text), (path, other)

    def names_at_the_server(self) -> list[tuple[str, str]]:
        """Where a person's name is found in what the server has written or said; nowhere is right."""
        spellings = {name: (name.encode(), json.dumps(name)[1:-1].encode()) for name in (*NAMES[: self.people], EMPTY)}
        places = [*self.out.rglob("*"), self.folder / "serve.log"]
        return [
            (str(place), name)
            for place in places
            if place.is_file()
            for name, forms in spellings.items()
            if any(form in place.read_bytes() for form in forms)
        ]


@contextmanager
def company(folder: Path, **options: Any) -> Iterator[Company]:
    made = Company(folder, **options)
    try:
        yield made
    finally:
        left = made.end()
    assert not left, left
