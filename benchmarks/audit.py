"""Attacks on the privacy of the five systems, with and without defences: the tables of docs/concepts/privacy.md.

    python benchmarks/audit.py prepare FOLDER            # the model that all of them begin with, once
    python benchmarks/audit.py run FOLDER fedgc none     # one system with one defence; writes FOLDER/results/*.json
    python benchmarks/audit.py jobs                      # every pair, a line each, for xargs
    python benchmarks/audit.py table FOLDER              # Markdown

Everything is as in the recipe `demo-all`: ten clients with twelve synthetic people each.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from personae.errors import PersonaeError
from personae.experiment.auditing import audit_run
from personae.experiment.config import Experiment, load_experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.privacy.accountant import in_words
from personae.report.privacy import attack_row
from personae.report.records import read_run

BASE = ("data.heldout.identities=60", "threads=1", "evaluation.pairs_per_fold=30")
SYSTEMS = ("fedpe", "fedgc", "fedface", "fedfr", "hf_maml", "unsupervised")
MUCH = {"name": "noise", "norm": 0.3, "multiplier": 1.0, "randomness": "seed"}
LITTLE = {**MUCH, "multiplier": 0.05}
CENTRES = {"name": "centres", "clusters": 3, "randomness": "seed"}
CANARIES = {"name": "canaries", "count": 32, "norm": 0.3}
DEFENCES: dict[str, list[dict[str, object]]] = {
    "none": [],
    "secret-sum": [{"name": "secret-sum"}],
    "noise": [MUCH],
    "little-noise": [LITTLE],
    **{f"centres-{z:g}": [{**CENTRES, "multiplier": z}] for z in (0.05, 0.2, 1.0)},
    "canaries": [CANARIES],
    "noise-and-canaries": [MUCH, CANARIES],
    "little-noise-and-canaries": [LITTLE, CANARIES],
}
START = "start"


def experiment(system: str | None, defence: str = "none") -> Experiment:
    """The recipe's start, and after it one system with its layers."""
    whole = load_experiment("demo-all", (*BASE, *os.environ.get("AUDIT_SET", "").split())).resolved()
    stages = {stage["name"]: stage for stage in whole["stages"]}
    chosen = [stages[START]]
    if system is not None:
        chosen.append({**stages[system], "after": START, "layers": DEFENCES[defence]})
    whole |= {"name": f"audit-{system or START}-{defence}", "stages": chosen, "audit": {"rounds": [1, -1]}}
    return parse_experiment(whole, "benchmarks/audit.py")


def prepare(folder: Path) -> None:
    conduct(experiment(None), folder / START, Execution(), resume=True)


def run(folder: Path, system: str, defence: str, *attacks: str) -> None:
    out, result = folder / f"{system}-{defence}", {"system": system, "defence": defence}
    try:
        conduct(experiment(system, defence), out, Execution(), begin=folder / START, resume=True)
        audit = audit_run(out, attacks or ("all",), stages=[system])
        last = read_run(out).records[system]
        result |= {"metrics": dict(last.final_metrics), "findings": [asdict(each) for each in audit.findings]}
        result["epsilon"] = [in_words(each) for each in read_run(out).spent]
    except (PersonaeError, ValueError) as error:
        result["refused"] = str(error)
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / f"{out.name}.json").write_text(json.dumps(result) + "\n")


def table(folder: Path) -> None:
    from personae.privacy.audit import Finding

    print(
        "| system | defence | attack | on | figure | found | 95% | chance | trials |"
        "\n|---|---|---|---|---|---|---|---|---|"
    )
    for path in sorted((folder / "results").glob("*.json")):
        found = json.loads(path.read_text())
        begin = [found["system"], found["defence"]]
        if "refused" in found:
            print("| " + " | ".join([*begin, "refused", found["refused"], "", "", "", "", ""]) + " |")
        for each in found.get("findings", ()):
            print("| " + " | ".join([*begin, *attack_row(Finding(**each))[1:]]) + " |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, arguments = sys.argv[1], sys.argv[2:]
    if what == "jobs":
        print("\n".join(f"{system} {defence}" for defence in DEFENCES for system in SYSTEMS))
    elif what == "prepare":
        prepare(Path(arguments[0]))
    elif what == "run":
        run(Path(arguments[0]), *arguments[1:])
    else:
        table(Path(arguments[0]))
