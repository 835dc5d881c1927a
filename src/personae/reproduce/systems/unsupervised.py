"""Unsupervised FedFR: a labelled source, unlabelled targets. Rows of the tables are variants of the recipe."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from personae.data.synthetic.domains import find_domain
from personae.reproduce.claims import Above, Claim, Gate, Near, Rising, System
from personae.reproduce.pages import save
from personae.reproduce.quantities import Outcomes, Quantity, constant, figure, said

SOURCE, TARGET = "heldout/source/accuracy", "heldout/target/accuracy"
GAP = 1.0  # points that count as clear
LITTLE = 1.0  # points that count as little
FORGOTTEN = ("with-source", "without-source")


def on_target(label: str, variant: str) -> Quantity:
    return figure(f"{label}, target", variant, TARGET)


def on_source(label: str, variant: str) -> Quantity:
    return figure(f"{label}, source", variant, SOURCE)


def f_score(label: str, variant: str) -> Quantity:
    """Of the pseudo-labels over all pairs of images of a client, mean over the targets."""
    return Quantity(
        label, (variant,), lambda outcomes: 100 * outcomes[variant].record().fractions["pseudo-labels/f_score"]
    )


def fall(label: str, variant: str, metric: str) -> Quantity:
    """By how much a metric ends below the best that it had in the last stage, or at its beginning."""

    def read(outcomes: Outcomes) -> float:
        curve = outcomes[variant].curve(metric)
        return 100 * (max(curve.values()) - curve[max(curve)])

    return Quantity(label, (variant,), read)


def held(label: str, constrained: str, free: str) -> Quantity:
    """How far the source moves in a round under the constraint, in percent of how far it does without."""
    with_it, without = (said(label, variant, "source_move") for variant in (constrained, free))
    return Quantity(label, (constrained, free), lambda outcomes: 100 * with_it.read(outcomes) / without.read(outcomes))


def _cameras(outcomes: Outcomes) -> float:
    """Before how many cameras the people of source and target stand; photographs count as one."""
    private = outcomes["source-only"].experiment.data.private
    assert private is not None  # a partition by domain has one
    captures = {part.capture or find_domain(part.domain).capture.name for part in private.all_parts().values()}
    return float(len(captures))


CAMERAS = Quantity("cameras of source and target", ("source-only",), _cameras, "cameras")
SOURCE_ONLY, FEDFR = on_target("source only", "source-only"), on_target("FedFR", "fedfr")
FINE_TUNE, FEDERATED = on_target("fine-tune", "fine-tune"), on_target("without constraint", "federated")
FOUR, FOUR_BALANCED = on_target("E", "clients-4"), on_target("E, balanced", "clients-4-balanced")


SOURCE_TEACHES = Gate(
    "the source is worth having: a source-only model beats a target-only one on the target",
    Above(SOURCE_ONLY, on_target("target only", "target-only")),
)
LABELLED = Gate(
    "pseudo-labels come within ten points of the paper's F-score, 91.54",
    Above(f_score("C-FINCH", "labels-c-finch"), constant(81.54)),
)
HELD = Gate(
    "the constraint is felt: it shortens the source's move in a round by 30%",
    Above(constant(70), held("move of the source, of that without constraint", "fedfr", "federated")),
)
SAME_CAMERA = Gate(
    "the shift is in the people: all stand before the same camera", Near(CAMERAS, constant(1, "camera"), within=0.5)
)
REGIME = (SOURCE_TEACHES, SAME_CAMERA, LABELLED)
TRUE_LABELS = on_target("true labels in stage 3", "true-labels")
# A control of averaging with a model that never sees the target.
NOT_AVERAGED = tuple(
    of_domain(label, variant)
    for label, variant in (("four clients and the source", "with-source"), ("four clients alone", "without-source"))
    for of_domain in (on_target, on_source)
)


def forgetting(outcomes: Mapping[int, Outcomes], out: Path) -> list[Path]:
    """Figure 6: the accuracy on both domains by round, with the source client and without, mean over seeds."""
    picture = Figure(figsize=(9, 4), layout="constrained")
    for place, (metric, title) in enumerate(((TARGET, "target"), (SOURCE, "source"))):
        axes = picture.add_subplot(1, 2, place + 1)
        for variant in FORGOTTEN:
            curves = [of_seed[variant].curve(metric) for of_seed in outcomes.values()]
            rounds = sorted(curves[0])
            means = [100 * sum(curve[round_] for curve in curves) / len(curves) for round_ in rounds]
            axes.plot(rounds, means, marker="o", label=variant.replace("-", " "))
        axes.set_title(f"accuracy on the {title}", fontsize=10)
        axes.set_xlabel("round")
        axes.legend(fontsize=8)
    path = out / "forgetting.png"
    save(picture, path)
    return [path]


UNSUPERVISED = System(
    name="unsupervised",
    leads="UD-4",
    paper="Zhuang et al., Towards Unsupervised Domain Adaptation for Deep Face Recognition under Privacy Constraints",
    claims=(
        Claim(
            "UD-1",
            "A source-only model shows a clear gap between source and target",
            "Table 3: 94.47 vs 86.65",
            (Above(on_source("source only", "source-only"), SOURCE_ONLY, by=GAP),),
            gates=(SOURCE_TEACHES, SAME_CAMERA),
            short="a source-only model has a clear gap to the target",
        ),
        Claim(
            "UD-2",
            "FedFR beats source-only, fine-tune, DAN and DANN on the target",
            "Table 3: 91.55 vs 86.65, 88.72, 86.98, 86.77",
            tuple(
                Above(FEDFR, other, paper=(91.55, reported))
                for other, reported in (
                    (SOURCE_ONLY, 86.65),
                    (FINE_TUNE, 88.72),
                    (on_target("DAN", "dan"), 86.98),
                    (on_target("DANN", "dann"), 86.77),
                )
            ),
            beside=(
                on_target("target only", "target-only"),
                on_target("FedProx", "fedprox"),
                TRUE_LABELS,
                *NOT_AVERAGED,
            ),
            gates=REGIME,
            short="on the target FedFR > source only, fine-tune, DAN, DANN",
        ),
        Claim(
            "UD-3",
            "With much more source data FedFR even beats merged training on the target, and keeps the source",
            "Table 3: 91.55 vs 88.60; 94.25 vs 94.47",
            (
                Above(FEDFR, on_target("merge", "merge"), paper=(91.55, 88.60)),
                Above(on_source("FedFR", "fedfr"), on_source("source only", "source-only"), by=-LITTLE),
            ),
            gates=REGIME,
            short="large source: FedFR > merged training, and keeps the source",
        ),
        Claim(
            "UD-4",
            "Fine-tuning forgets the source",
            "Table 3: 94.47 -> 87.73",
            (
                Above(
                    on_source("source only", "source-only"), on_source("fine-tune", "fine-tune"), paper=(94.47, 87.73)
                ),
            ),
            gates=REGIME,
            short="fine-tuning forgets the source",
        ),
        Claim(
            "UD-5",
            "Pseudo-label F-score: C-FINCH beats FINCH, K-means and DBSCAN",
            "Table 4: 91.54 vs 70.08, 87.17, 84.42",
            tuple(
                Above(f_score("C-FINCH", "labels-c-finch"), f_score(label, variant), paper=(91.54, reported))
                for label, variant, reported in (
                    ("FINCH", "labels-finch", 70.08),
                    ("K-means", "labels-k-means", 87.17),
                    ("DBSCAN", "labels-dbscan", 84.42),
                )
            ),
            gates=REGIME,
            short="F-score of C-FINCH > FINCH, K-means, DBSCAN",
        ),
        Claim(
            "UD-6",
            "pre-training < + clustering < + federated < + domain constraint (large source)",
            "Table 5: 86.65, 88.72, 91.12, 91.55",
            (
                Above(FINE_TUNE, SOURCE_ONLY, paper=(88.72, 86.65)),
                Above(FEDERATED, FINE_TUNE, paper=(91.12, 88.72)),
                Above(FEDFR, FEDERATED, paper=(91.55, 91.12)),
            ),
            beside=(on_target("clustering again", "reclustered"), TRUE_LABELS, *NOT_AVERAGED),
            gates=(*REGIME, HELD),
            short="source only < clustering < federated < constraint",
        ),
        Claim(
            "UD-7",
            "More local iterations cost accuracy with a small source, little with a large one",
            "Figure 4",
            (
                Rising(
                    (
                        on_target("all in one round, balanced", "at-once-balanced"),
                        on_target("thrice E, balanced", "thrice-balanced"),
                        FOUR_BALANCED,
                    )
                ),
                Above(on_target("all in one round", "at-once"), FOUR, by=-LITTLE),
            ),
            beside=(on_target("thrice E", "thrice"),),
            gates=REGIME,
            short="more local steps: cost with a small source, little with a large one",
        ),
        Claim(
            "UD-8",
            "1 -> 6 target clients costs little",
            "Figure 5",
            (
                Above(on_target("K = 6", "clients-6"), FEDFR, by=-LITTLE),
                Above(
                    on_target("K = 6, balanced", "clients-6-balanced"),
                    on_target("K = 1, balanced", "clients-1-balanced"),
                    by=-LITTLE,
                ),
            ),
            beside=(on_target("K = 4", "clients-4"),),
            gates=REGIME,
            short="six target clients cost little",
        ),
        Claim(
            "UD-9",
            "Without the source client both domains degrade",
            "Figure 6",
            tuple(
                Above(
                    fall(f"fall from the peak without source, {name}", "without-source", metric),
                    fall(f"fall from the peak with source, {name}", "with-source", metric),
                )
                for name, metric in (("target", TARGET), ("source", SOURCE))
            ),
            gates=REGIME,
            short="without the source client both domains degrade",
        ),
    ),
    pictures=forgetting,
    pictured=FORGOTTEN,
)
