"""HF-MAML: meta-learning over clients, tuned at each. Variants are `<partition>-<method>`, each with its tuning.

FedAvg is the one that sees as many images as HF-MAML. With the paper's own budget, about 17 times as many, it is shown
beside where that decides something; the recipe has all its forms with that budget, too, for `personae run --variant`.

Beside a claim stands what may turn it: the same with alpha towards 0, of which only a lead speaks for meta-learning,
and the same figures among a client's own people.
"""

from typing import Any

from personae.reproduce.claims import Above, Claim, Gate, Near, System
from personae.reproduce.quantities import Outcomes, Quantity
from personae.reproduce.served import client_by_client, gain_of_third, over_clients

METRIC = "1:1 tar@1e-01"  # impostors are everybody's
OWN = "tar@1e-01"  # impostors are the client's own people
HALF = "1:1 half tar@1e-01"  # half of the impostor pairs are
IMPOSTORS = {METRIC: (), OWN: ("own people",), HALF: ("half own people",)}
CLOSE = 2.0  # points that count as about the same
BATCHES = 3  # of a meta step: D, D' and D''
METHODS = {
    "hf": "HF-MAML",
    "hf-plain": "HF-MAML, alpha to 0",
    "hf-exact-tenth": "HF-MAML, alpha 0.1, exact Hessian",
    "hf-exact-half": "HF-MAML, alpha 0.5, exact Hessian",
    "hf-regularised": "HF-MAML regularised",
    "hf-regularised-three": "HF-MAML regularised, C = 3",
    "hf-regularised-thirty": "HF-MAML regularised, C = 30",
    "hf-global": "HF-MAML global layer",
    "fedavg": "FedAvg",
    "fedavg-regularised": "FedAvg regularised",
    "fedavg-global": "FedAvg global layer",
    "fedavg-paper": "FedAvg, 17 x the images",
    "q-fedavg": "q-FedAvg",
}


LEADING = ("hf", "fedavg")  # the two that claims compare


def tar(
    partition: str, method: str, *, tuned: bool = True, new: bool = False, of: str = "mean", metric: str = METRIC
) -> Quantity:
    words = [partition, METHODS[method], "tuned" if tuned else "untuned", "new" if new else "trained"]
    words += [*IMPOSTORS[metric], *([] if of == "mean" else [of])]
    return over_clients(", ".join(words), f"{partition}-{method}", metric, tuned=tuned, new=new, of=of)


def lead(partition: str, *, metric: str = METRIC) -> Quantity:
    """Of HF-MAML over FedAvg, both with a global layer, at new clients, tuned."""
    one, other = (tar(partition, method, new=True, metric=metric) for method in ("hf-global", "fedavg-global"))
    return one - other


def help_of_regularisation(partition: str, *, tuned: bool) -> Quantity:
    """To new clients."""
    return tar(partition, "hf-regularised", tuned=tuned, new=True) - tar(partition, "hf", tuned=tuned, new=True)


def lift(partition: str, method: str = "hf", *, new: bool, metric: str = METRIC) -> Quantity:
    """Of tuning."""
    after, before = (tar(partition, method, tuned=tuned, new=new, metric=metric) for tuned in (True, False))
    return after - before


def third(weakest: bool, chosen_by: str, method: str = "hf", *, metric: str = METRIC) -> Quantity:
    words = [f"gain of the {'weakest' if weakest else 'strongest'} third by {chosen_by}", *IMPOSTORS[metric]]
    words += [] if method == "hf" else [METHODS[method]]
    return gain_of_third(
        ", ".join(words), "attributes-fedavg", f"attributes-{method}", metric, weakest=weakest, chosen_by=chosen_by
    )


def images(label: str, variant: str) -> Quantity:
    """On which a client trains in a round of the stage before tuning, each counted as often as it is drawn."""

    def read(outcomes: Outcomes) -> float:
        algorithm: Any = outcomes[variant].experiment.recipe[-2].algorithm
        meta = getattr(algorithm, "meta", None)
        steps = algorithm.training if meta is None else meta
        return float((1 if meta is None else BATCHES) * steps.iterations * steps.batch_size)

    return Quantity(label, (variant,), read, "images")


def by_round(label: str, variant: str, share: float) -> Quantity:
    """The mean over all clients under the global model when this share of the rounds is done."""

    def read(outcomes: Outcomes) -> float:
        found = {round_: spreads for round_, spreads in outcomes[variant].record().clients.items() if round_}
        nearest = min(found, key=lambda round_: abs(round_ - share * max(found)))
        return 100 * found[nearest][f"global/{METRIC}"].mean

    return Quantity(label, (variant,), read)


SLOWED = Gate(
    "training has slowed down: the last third of the rounds changes the global model by less than two points",
    Near(
        by_round("HF-MAML at the end", "attributes-hf-training", 1.0),
        by_round("HF-MAML at two thirds", "attributes-hf-training", 2 / 3),
        within=CLOSE,
    ),
)

SAME_BUDGET = Gate(
    "both sides train on as many images",
    Near(
        images("HF-MAML, in a round of a client", "attributes-hf"),
        images("FedAvg, in a round of a client", "attributes-fedavg"),
        within=1,
    ),
)
GATES = (SLOWED, SAME_BUDGET)

HF_MAML = System(
    name="hf_maml",
    leads="HM-1",
    paper="Gansekoele, Hess and Bhulai, Meta-Learning for Federated Face Recognition in Imbalanced Data Regimes",
    claims=(
        Claim(
            "HM-1",
            "Equal partition: HF-MAML is no worse than FedAvg after tuning; a local classification layer is enough",
            "Table V: 0.817 -> 0.852 tuned, local; HF-MAML global 0.855",
            (
                Above(tar("equal", "hf"), tar("equal", "fedavg"), by=-CLOSE),
                Above(tar("equal", "hf"), tar("equal", "hf-global"), by=-CLOSE),
            ),
            beside=(
                tar("equal", "fedavg-global"),
                tar("equal", "hf-plain"),
                tar("equal", "hf", metric=OWN),
                tar("equal", "fedavg", metric=OWN),
            ),
            gates=GATES,
            short="HF-MAML no worse than FedAvg; a local layer is enough",
        ),
        Claim(
            "HM-2",
            "Log-normal partition: with a global layer, the difference is larger than in the equal one",
            "Tables V, VI, tuned: local, trained 0.817 -> 0.852 equal, 0.786 -> 0.802 log-normal, which is less; "
            "global, new 0.760 -> 0.762, 0.715 -> 0.737",
            (Above(lead("lognormal"), lead("equal"), paper=2.0),),
            beside=tuple(lead(partition, metric=OWN) for partition in ("lognormal", "equal")),
            gates=GATES,
            short="global layer: a larger lead on the log-normal partition",
        ),
        Claim(
            "HM-3",
            "Attribute partition: HF-MAML tuned > FedAvg tuned, for trained and for new clients",
            "Table VII: 0.772 -> 0.816 trained, 0.695 -> 0.759 new, local",
            (
                Above(tar("attributes", "hf"), tar("attributes", "fedavg"), paper=(81.6, 77.2)),
                Above(tar("attributes", "hf", new=True), tar("attributes", "fedavg", new=True), paper=(75.9, 69.5)),
            ),
            beside=(
                *(
                    tar("attributes", method, new=new)
                    for method in ("fedavg-paper", "hf-plain", "hf-exact-tenth", "hf-exact-half")
                    for new in (False, True)
                ),
                *(tar("attributes", method, new=new, metric=OWN) for new in (False, True) for method in LEADING),
            ),
            gates=GATES,
            short="by attributes HF-MAML > FedAvg, trained and new clients",
        ),
        Claim(
            "HM-4",
            "Embedding regularisation is best for new clients without tuning; the gain goes after tuning",
            "Tables VI, VII: new, HF-MAML 0.705 -> 0.726, 0.679 -> 0.708 untuned; 0.731 -> 0.735, 0.759 -> 0.729 tuned",
            tuple(
                part
                for partition, untuned, fading in (("lognormal", (72.6, 70.5), 1.7), ("attributes", (70.8, 67.9), 5.9))
                for part in (
                    Above(
                        tar(partition, "hf-regularised", tuned=False, new=True),
                        tar(partition, "hf", tuned=False, new=True),
                        paper=untuned,
                    ),
                    Above(
                        help_of_regularisation(partition, tuned=False),
                        help_of_regularisation(partition, tuned=True),
                        paper=fading,
                    ),
                )
            ),
            beside=(
                *(
                    tar(partition, method, tuned=False, new=True, metric=metric)
                    for partition in ("lognormal", "attributes")
                    for method, metric in (("fedavg-regularised", METRIC), ("hf-regularised", OWN), ("hf", OWN))
                ),
                *(
                    tar("attributes", method, tuned=tuned, new=True)
                    for method in ("hf-plain", "hf-regularised-three", "hf-regularised-thirty")
                    for tuned in (False, True)
                ),
            ),
            gates=GATES,
            short="regularisation helps new clients before tuning, not after",
        ),
        Claim(
            "HM-5",
            "The spread over clients is smaller with HF-MAML after tuning (fairness)",
            "Tables IX, X: 0.114 -> 0.105 log-normal, 0.093 -> 0.074 attributes, local",
            tuple(
                Above(tar(partition, "fedavg", of="deviation"), tar(partition, "hf", of="deviation"), paper=less)
                for partition, less in (("lognormal", 0.9), ("attributes", 1.9))
            ),
            beside=(
                *(tar("attributes", method, of="deviation") for method in ("q-fedavg", "hf-plain")),
                *(tar("attributes", method, of="worst_decile") for method in LEADING),
                *(
                    tar(partition, method, of="deviation", metric=OWN)
                    for partition in ("lognormal", "attributes")
                    for method in LEADING
                ),
            ),
            gates=GATES,
            short="smaller spread over clients after tuning",
        ),
        Claim(
            "HM-6",
            "The weakest clients gain most",
            "Figure 3",
            tuple(Above(third(True, chosen_by), third(False, chosen_by)) for chosen_by in ("before", "both")),
            beside=(
                *(third(weakest, "both", "hf-plain") for weakest in (True, False)),
                *(third(weakest, "both", metric=OWN) for weakest in (True, False)),
            ),
            gates=GATES,
            short="the weakest clients gain most",
        ),
        Claim(
            "HM-7",
            "Tuning lifts the clients seen in training more than new ones",
            "Figures 1, 2; Table V, local: 0.804 -> 0.852 trained, 0.737 -> 0.768 new",
            (Above(lift("equal", new=False), lift("equal", new=True), paper=1.7),),
            beside=(
                *(lift("equal", new=new, metric=metric) for metric in (OWN, HALF) for new in (False, True)),
                *(lift("equal", "hf-plain", new=new) for new in (False, True)),
            ),
            gates=GATES,
            short="tuning lifts trained clients more than new ones",
        ),
    ),
    pictures=client_by_client("attributes-fedavg", "FedAvg", "attributes-hf", "HF-MAML", METRIC),
    pictured=("attributes-fedavg", "attributes-hf"),
)
