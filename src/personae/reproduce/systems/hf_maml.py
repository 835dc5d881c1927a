"""HF-MAML: meta-learning over clients, tuned at each. Variants are `<partition>-<method>`, each with its tuning.

FedAvg is the one that sees as many images as HF-MAML. With the paper's own budget, about 17 times as many, it is shown
beside where that decides something; the recipe has all its forms with that budget, too, for `personae run --variant`.
"""

from personae.reproduce.claims import Above, Claim, System
from personae.reproduce.quantities import Quantity
from personae.reproduce.served import client_by_client, gain_of_third, over_clients

METRIC = "1:1 tar@1e-01"
CLOSE = 2.0  # points that count as about the same
METHODS = {
    "hf": "HF-MAML",
    "hf-regularised": "HF-MAML regularised",
    "hf-global": "HF-MAML global layer",
    "fedavg": "FedAvg",
    "fedavg-regularised": "FedAvg regularised",
    "fedavg-global": "FedAvg global layer",
    "fedavg-paper": "FedAvg, 17 x the images",
    "q-fedavg": "q-FedAvg",
}


def tar(partition: str, method: str, *, tuned: bool = True, new: bool = False, of: str = "mean") -> Quantity:
    words = [partition, METHODS[method], "tuned" if tuned else "untuned", "new" if new else "trained"]
    label = ", ".join(words if of == "mean" else [*words, of])
    return over_clients(label, f"{partition}-{method}", METRIC, tuned=tuned, new=new, of=of)


def lead(partition: str) -> Quantity:
    """Of HF-MAML over FedAvg, tuned."""
    return tar(partition, "hf") - tar(partition, "fedavg")


def help_of_regularisation(partition: str, *, tuned: bool) -> Quantity:
    """To new clients."""
    return tar(partition, "hf-regularised", tuned=tuned, new=True) - tar(partition, "hf", tuned=tuned, new=True)


def lift(partition: str, *, new: bool) -> Quantity:
    """Of tuning."""
    return tar(partition, "hf", new=new) - tar(partition, "hf", tuned=False, new=new)


def third(weakest: bool, chosen_by: str) -> Quantity:
    label = f"gain of the {'weakest' if weakest else 'strongest'} third by {chosen_by}"
    return gain_of_third(label, "attributes-fedavg", "attributes-hf", METRIC, weakest=weakest, chosen_by=chosen_by)


HF_MAML = System(
    name="hf_maml",
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
            beside=(tar("equal", "fedavg-global"),),
        ),
        Claim(
            "HM-2",
            "Log-normal partition: the difference is larger than in the equal one",
            "Tables V, VI, tuned: local, trained 0.817 -> 0.852 equal, 0.786 -> 0.802 log-normal, which is less; "
            "global, new 0.760 -> 0.762, 0.715 -> 0.737",
            (Above(lead("lognormal"), lead("equal")),),
        ),
        Claim(
            "HM-3",
            "Attribute partition: HF-MAML tuned > FedAvg tuned, for trained and for new clients",
            "Table VII: 0.772 -> 0.816 trained, 0.695 -> 0.759 new, local",
            (
                Above(tar("attributes", "hf"), tar("attributes", "fedavg")),
                Above(tar("attributes", "hf", new=True), tar("attributes", "fedavg", new=True)),
            ),
            beside=(tar("attributes", "fedavg-paper"), tar("attributes", "fedavg-paper", new=True)),
        ),
        Claim(
            "HM-4",
            "Embedding regularisation is best for new clients without tuning; the gain goes after tuning",
            "Tables VI, VII: new, HF-MAML 0.705 -> 0.726, 0.679 -> 0.708 untuned; 0.731 -> 0.735, 0.759 -> 0.729 tuned",
            tuple(
                part
                for partition in ("lognormal", "attributes")
                for part in (
                    Above(
                        tar(partition, "hf-regularised", tuned=False, new=True),
                        tar(partition, "hf", tuned=False, new=True),
                    ),
                    Above(
                        help_of_regularisation(partition, tuned=False), help_of_regularisation(partition, tuned=True)
                    ),
                )
            ),
            beside=tuple(
                tar(partition, "fedavg-regularised", tuned=False, new=True) for partition in ("lognormal", "attributes")
            ),
        ),
        Claim(
            "HM-5",
            "The spread over clients is smaller with HF-MAML after tuning (fairness)",
            "Tables IX, X: 0.114 -> 0.105 log-normal, 0.093 -> 0.074 attributes, local",
            tuple(
                Above(tar(partition, "fedavg", of="deviation"), tar(partition, "hf", of="deviation"))
                for partition in ("lognormal", "attributes")
            ),
            beside=(
                tar("attributes", "q-fedavg", of="deviation"),
                tar("attributes", "hf", of="worst_decile"),
                tar("attributes", "fedavg", of="worst_decile"),
            ),
        ),
        Claim(
            "HM-6",
            "The weakest clients gain most",
            "Figure 3",
            tuple(Above(third(True, chosen_by), third(False, chosen_by)) for chosen_by in ("before", "both")),
        ),
        Claim(
            "HM-7",
            "Tuning lifts the clients seen in training more than new ones",
            "Figures 1, 2",
            (Above(lift("equal", new=False), lift("equal", new=True)),),
        ),
    ),
    pictures=client_by_client("attributes-fedavg", "FedAvg", "attributes-hf", "HF-MAML", METRIC),
    pictured=("attributes-fedavg", "attributes-hf"),
)
