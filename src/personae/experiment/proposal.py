"""The recommended experiment for your own faces: what is there decides, and a few sentences say why."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from personae.algorithms import Adapt, FedFace, FedPE, Unsupervised
from personae.core.strong_start import with_strong_start
from personae.data.handling import Handling
from personae.data.packs import is_pack, open_pack
from personae.data.readers.folders import has_images_alone
from personae.errors import ConfigError
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.held_out import with_people_held_out
from personae.experiment.materials import Materials
from personae.experiment.recipes import recipes
from personae.models import Network, load_weights
from personae.words import counted

Table = dict[str, Any]
FEW = 5  # people at a client: with fewer, a client's own task says little about faces
USUAL_PEOPLE, MOST_CLIENTS = 10, 10  # of a client, and clients, where nobody says how many there are
# Renewed class embeddings are better for 36 clients of some 20 people, and no better for ten clients. With hundreds of
# people per client nobody has tried them (docs/results/recommended.md).
MANY_CLIENTS, FEW_TENS = 20, 40
PASSES, PASSES_ON = 18, 6  # how often every client is asked: from scratch, and from a model that knows faces
KEEPING = (  # what the defaults for given weights are for
    "The given weights know faces already, and training takes from that more easily than it adds: so class embeddings "
    "begin as the mean of each person's features, BatchNorm keeps the statistics of the weights, and the rate is low."
)
WEAK_START = (  # docs/results/recommended.md
    "A model of few public faces is a weak start for this: after 120 synthetic people, one to two points were lost. "
    "Published weights (--weights) are a better one."
)
COSFACE = {"kind": "cosface", "scale": 24.0, "margin": 0.2}


@dataclass(frozen=True)
class Proposal:
    """An experiment, why it is this one, and its file."""

    experiment: Experiment
    why: str
    text: str


@dataclass(frozen=True)
class Situation:
    """What decides: whose faces these are, who shares them, and what there is to begin with."""

    people: int  # who are trained on; 0 where nobody says who is on the images
    held_out: int  # more people, for the test
    clients: int
    wanted: int | None  # clients, if somebody says how many
    public: Path | None
    weights: Path | None

    @property
    def start(self) -> str:
        """Words for a model that knows faces already; none where training begins from scratch."""
        return "the given weights" if self.weights else "a model trained on the public faces" if self.public else ""

    @property
    def waits_long(self) -> bool:
        """Whether class embeddings that a client kept do not fit the model any more when it is asked again."""
        return not self.start and self.clients >= MANY_CLIENTS and self.people // self.clients <= FEW_TENS


def propose(
    faces: Path,
    execution: Execution,
    *,
    public: Path | None = None,
    weights: Path | None = None,
    clients: int | None = None,
    network: Network | None = None,
    unlabelled: bool = False,
    handling: Handling | None = None,
) -> Proposal:
    """Look at the faces and choose. The network is that of the weights, or has the size of a pack, if nobody says."""
    unused = public if weights else None  # what they would be for is done already
    public = None if weights else public
    unlabelled = unlabelled or (faces.is_dir() and has_images_alone(faces))
    raw = _faces(faces, public, weights, network or _network(faces, weights), unlabelled, clients or 2)
    known = Materials(parse_experiment(raw | {"stages": _clustering()}, str(faces)).handled(handling or {}), execution)
    usable = 0 if unlabelled else int((known.private.images_per_identity > 0).sum())
    if not unlabelled:
        _require_people(faces, usable, clients)
        raw = with_people_held_out(raw, known.private.images_per_identity)
    people = min(usable, raw["data"]["private"].get("identities", usable))
    shares = clients or max(2, min(MOST_CLIENTS, people // USUAL_PEOPLE))
    raw["partition"]["clients"] = min(shares, people) if people else shares
    situation = Situation(people, usable - people, raw["partition"]["clients"], clients, public, weights)
    method, why = _method(situation)
    raw["stages"] = [*(_pretraining() if public else []), *method]
    why = f"{_seen(faces, situation, len(known.private), unused)} {why}"
    experiment = parse_experiment(raw, str(faces)).handled(handling or {})
    options = {name: value for name, value in (handling or {}).items() if value}
    for source in raw["data"].values():
        source |= options
    return Proposal(experiment, why, _comment(why) + _toml(raw))


def _network(faces: Path, weights: Path | None) -> Network:
    if weights:
        return load_weights(weights)[0]
    height, width = open_pack(faces).size if is_pack(faces) else (Network.height, Network.width)
    return Network(height=height, width=width)


def _faces(
    faces: Path, public: Path | None, weights: Path | None, network: Network, unlabelled: bool, clients: int
) -> Table:
    """All of the experiment but its stages."""
    raw: Table = {"name": faces.resolve().stem, "seed": 0}
    raw |= {"weights": str(weights.absolute())} if weights else {}
    data: Table = {"public": {"source": str(public.absolute())}} if public else {}
    data["private"] = {"source": str(faces.absolute())} | ({"unlabelled": True} if unlabelled else {"min_images": 2})
    partition = {"by": "equal", "clients": clients, "train": 0.7, "val": 0.0, "test": 0.3}
    return raw | {
        "network": asdict(network),
        "data": data,
        "partition": partition,
        "evaluation": {"fars": [0.1, 0.01], "client_fars": [0.1]},
    }


def _require_people(faces: Path, usable: int, clients: int | None) -> None:
    if usable < 2:
        raise ConfigError(
            f"{faces}: {counted(usable, 'person', 'people')} with two photographs or more; training takes two people "
            "at least, each with a folder of photographs"
        )
    if clients and clients > usable:
        raise ConfigError(
            f"--clients {clients}: {faces} has {counted(usable, 'person', 'people')} with two photographs or more, "
            "and every client needs one of them"
        )


def _seen(faces: Path, situation: Situation, images: int, unused: Path | None) -> str:
    people, held_out, clients = situation.people, situation.held_out, situation.clients
    whose = f" of {people + held_out} people" if people else ", and nobody says of whom"
    shared = f"{counted(clients, 'client')} share {f'the other {people}' if held_out else 'them'}"
    if people and (situation.wanted or clients) > clients:
        shared += f", since {situation.wanted} would be more than there are people left"
    left_out = "; the public faces are left out, as the weights take their place" if unused else ""
    kept = f"{held_out} are held out for the test, and " if held_out else ""
    return f"{faces.name} has {counted(images, 'photograph')}{whose}: {kept}{shared}{left_out}."


def _method(situation: Situation) -> tuple[list[Table], str]:
    """Its stages, and why it is the one."""
    if not situation.people:
        if not situation.start:
            raise ConfigError(
                "nobody says who is on these photographs. To train on them takes a model that knows faces: give "
                "--weights or --public, or put the photographs of each person into a folder"
            )
        return _clustering() + _unlabelled(situation), (
            f"Each client groups its own photographs by {situation.start}, and all train on these groups together. "
            "Only weights and figures leave, among them the numbers and sizes of the groups. "
            "Look at the clusters in the table of the run before you trust the result: no other figure tells how good "
            "it is." + ("" if situation.weights else f" {WEAK_START}")
        )
    if situation.people // situation.clients < FEW:
        if not situation.start:
            raise ConfigError(
                f"{situation.clients} clients share {situation.people} people to train with; fewer than {FEW} do not "
                "show a client what tells people apart: give --weights or --public, or fewer --clients"
            )
        return [_few_people(situation)], (
            f"Clients with fewer than {FEW} people see hardly anybody to tell them from, so the server spreads out "
            f"their class embeddings (FedFace), beginning with {situation.start}. "
            "These embeddings are templates of people, and they leave the clients. "
            "Expect a point of gain at most: where templates must not leave, keep what you begin with as it is."
            + (f" {KEEPING}" if situation.weights else "")
        )
    if situation.weights:
        return _from_weights(), (
            f"{KEEPING} Everybody is asked in every round, since small cohorts forget more; then every client gets a "
            "model of its own. Only weights, counts and figures leave. "
            "If a model ends below the weights, the results say so in their first line."
        )
    if situation.start:
        return _recommended(situation), (
            f"Small cohorts in passes and a rate that falls to zero go on from {situation.start}, gently enough to "
            "keep what it knows; then every client gets a model of its own. Only weights, counts and figures leave."
        )
    cohorts = "small cohorts in passes" if situation.clients > 2 else "one client after the other"
    renewed = (
        f"With {situation.clients} clients, many others change the model between two visits to one of them. So each "
        "begins every visit with class embeddings that are the means of its people's features, and not with old ones. "
        if situation.waits_long
        else ""
    )
    return _recommended(situation), (
        f"There is no model to begin with, so training starts from scratch with the recommended method: {cohorts}, "
        "a rate that falls to zero, a wide margin; then a model of its own for every client. "
        f"{renewed}"
        "Only weights, counts and figures leave. Starting weights (--weights) would help more than anything else."
    )


def _recommended(situation: Situation) -> list[Table]:
    """The stages of the recipe, as often as these clients take; from a model that knows faces, with small steps."""
    together, personal = tomllib.loads(recipes()["recommended"].read_text(encoding="utf-8"))["stages"]
    cohort = together["selection"]["clients"]
    if situation.clients == cohort and not situation.start:  # both at once would be everybody, which is worth far less
        cohort = together["selection"]["clients"] = 1
    passes = PASSES_ON if situation.start else PASSES
    together["rounds"] = passes * -(-situation.clients // cohort)
    together["evaluate_every"] = together["rounds"] // 3
    if situation.start:
        together["algorithm"] |= {"head_init": "mean", "margin": COSFACE}
        together["algorithm"]["training"] |= {"lr": 0.05}
    if situation.waits_long:
        together["algorithm"] |= {"head": "renewed", "head_init": "mean"}
    return [together, personal]


def _from_weights() -> list[Table]:
    """Everybody in every round, with the defaults for given weights written out."""
    budget = {"batch_size": 32, "epochs": 1}
    together = {"name": "fedpe", **with_strong_start(FedPE, {"training": budget})}
    personal = {"name": "adapt", "use_public_faces": False, **with_strong_start(Adapt, {"training": budget})}
    return [
        {"name": "together", "label": "together", "rounds": PASSES_ON, "evaluate_every": 2, "algorithm": together},
        {"name": "personal", "label": "personal", "rounds": 1, "algorithm": personal},
    ]


def _few_people(situation: Situation) -> Table:
    algorithm: Table = {"name": "fedface", "strength": 0.25, "margin": COSFACE}
    if situation.weights:
        algorithm = with_strong_start(FedFace, {**algorithm, "training": {"batch_size": 8, "epochs": 1}})
    else:
        algorithm["training"] = {"lr": 0.05, "batch_size": 8, "epochs": 1}
    return {"name": "fedface", "label": "FedFace", "rounds": 12, "evaluate_every": 4, "algorithm": algorithm}


def _clustering() -> list[Table]:
    return [{"name": "cluster", "label": "clusters found", "algorithm": {"name": "cluster"}}]


def _unlabelled(situation: Situation) -> list[Table]:
    algorithm: Table = {"name": "unsupervised", "strength": 0.0, "margin": COSFACE}
    if situation.weights:
        algorithm = with_strong_start(Unsupervised, {**algorithm, "training": {"batch_size": 32, "iterations": 20}})
    else:
        algorithm["training"] = {"lr": 0.01, "batch_size": 32, "iterations": 20}
    return [{"name": "unsupervised", "label": "unsupervised FedFR", "rounds": 6, "algorithm": algorithm}]


def _pretraining() -> list[Table]:
    training = {"lr": 0.2, "batch_size": 64, "epochs": 1, "schedule": "cosine", "warmup": 0.15}
    algorithm = {"name": "pretrain", "margin": COSFACE, "training": training}
    return [{"name": "start", "label": "trained on public faces", "rounds": 16, "algorithm": algorithm}]


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in wrap(text, 118))


def _toml(raw: Mapping[str, Any]) -> str:
    """An experiment as a file: tables down to the second level, what is below in a line each."""
    plain = [f"{name} = {_value(value)}\n" for name, value in raw.items() if not isinstance(value, dict | list)]
    sections = []
    for name, table in raw.items():
        if name == "stages":
            for stage in table:
                sections.append(_section("[[stages]]", {**stage, "algorithm": None}))
                sections.append(_section("[stages.algorithm]", stage["algorithm"]))
        elif name == "data":
            sections += [_section(f"[data.{role}]", source) for role, source in table.items()]
        elif isinstance(table, dict):
            sections.append(_section(f"[{name}]", table))
    return "".join([*plain, *sections])


def _section(heading: str, table: Mapping[str, Any]) -> str:
    lines = (f"{name} = {_value(value)}\n" for name, value in table.items() if value is not None)
    return f"\n{heading}\n" + "".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers and booleans are written alike
