"""Folders such as runs leave, without running anything, and a reader of the pages that are made of them."""

import json
import math
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from personae.evaluation.curves import sweep
from personae.evaluation.verification import Scores, tar_at_far, tar_name

STAGES = (("pretrain", "pre-trained", 4, 0.30), ("federate", "federated", 20, 0.48), ("central", "central", 6, 0.55))


def final_scores(mean, seed):
    random = np.random.default_rng(seed)
    genuine = random.normal(mean, 0.15, 4_000).clip(-1, 1).astype(np.float32)
    return Scores(genuine, random.normal(0.0, 0.12, 60_000).clip(-1, 1).astype(np.float32))


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def fake_run(folder, clients=12, federated_rounds=20, personal_every=5):
    """A directory such as a run of three stages leaves: pre-training, federation, and the central bound."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation").mkdir(exist_ok=True)
    names = [f"client-{number:03}" for number in range(clients)]
    metrics, timing, transfers, stages = [], [], [], []
    for stage, label, rounds, mean in STAGES:
        rounds = federated_rounds if stage == "federate" else rounds
        discloses = ["ModelState", "ClassEmbeddings", "Count"] if stage == "federate" else []
        stages.append({"name": stage, "algorithm": {"federate": "fedpe"}.get(stage, stage), "label": label})
        stages[-1] |= {"rounds": rounds, "discloses": discloses, "pools_faces": stage == "central"}
        start = 0.1 if stage == "pretrain" else 0.3
        for number in range(rounds + 1):
            grown = 1 - math.exp(-3 * number / rounds)
            level = start + (mean - start) * grown
            if number:
                event = {"event": "round", "stage": stage, "round": number, "participants": [], "rejected": {}}
                event |= {"failed": {}, "scalars": {"loss": 9 * math.exp(-4 * level) + 0.05 * random.random()}}
                timing.append({"stage": stage, "round": number, "seconds": 2 + random.random()})
                if stage == "federate":
                    event["participants"] = names
                    if number == 3:
                        event["rejected"] = {names[4 % clients]: "update has a norm of 312, 40 times the median"}
                    if number in (7, 8):
                        event["failed"] = {names[7 % clients]: "timed out after 60 s"}
                    for client in names:
                        for way, payload, size in (
                            ("down", "ModelState", 1_234_567),
                            ("up", "ModelState", 1_234_567),
                            ("up", "ClassEmbeddings", 20_480),
                            ("up", "Count", 8),
                        ):
                            transfer = {"stage": stage, "round": number, "client": client, "direction": way}
                            transfers.append(transfer | {"payload": payload, "bytes": size})
                metrics.append(event)
            results = {"heldout/accuracy": 0.6 + 0.7 * level, "heldout/accuracy_std": 0.012, "heldout/rank1": level}
            results |= {"heldout/tar@1e-02": 1.3 * level, "heldout/tar@1e-03": level, "private/tar@1e-02": level}
            metrics.append({"event": "global", "stage": stage, "round": number, "metrics": results})
            if stage == "federate" and number % personal_every == 0:
                personal = {}
                for client in names:
                    base = min(1, max(0, level + 0.3 + 0.1 * random.standard_normal()))
                    gain = min(1, base + 0.15 * random.random())
                    personal[client] = {"global/tar@1e-02": base, "personal/tar@1e-02": gain}
                    personal[client] |= {"global/rank1": 0.9 * base, "personal/rank1": 0.95 * gain}
                metrics.append({"event": "personal", "stage": stage, "round": number, "clients": personal})
        benchmarks = {}
        for seed, benchmark in enumerate(("heldout", "private")):
            scores = final_scores(mean + 0.03 * seed, seed)
            rates = {tar_name(far): tar for far, tar in tar_at_far(scores, (1e-2, 1e-3)).items()}
            if benchmark == "heldout":
                rates = {"accuracy": 0.6 + 0.7 * mean, "accuracy_std": 0.012, **rates, "rank1": 1.5 * mean}
            benchmarks[benchmark] = {
                "metrics": rates,
                **asdict(sweep(scores)),
            }
            benchmarks[benchmark] |= {"genuine_pairs": 4_000, "impostor_pairs": 60_000}
        final = {"stage": stage, "round": rounds, "benchmarks": benchmarks}
        (folder / "evaluation" / f"{stage}.json").write_text(json.dumps(final))
    config = {"name": "fedpe on synthetic faces", "seed": 7, "data": {"identities": 400, "clients": clients}}
    (folder / "config.json").write_text(json.dumps(config))
    environment = {"personae": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "platform": "Linux", "device": "cpu"}
    (folder / "environment.json").write_text(json.dumps(environment | {"workers": 2}))
    (folder / "summary.json").write_text(json.dumps({"stages": stages}))
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "timing.jsonl", timing)
    write_lines(folder / "ledger.jsonl", transfers)
    return folder


def edit(folder: Path, stage: str, change) -> None:
    path = folder / "evaluation" / f"{stage}.json"
    content = json.loads(path.read_text())
    change(content["benchmarks"]["heldout"])
    path.write_text(json.dumps(content))


def resample(folder: Path, rates: dict[str, float], spread: float, seed: int = 0) -> None:
    """Held-out rates of the stages, with resamples that share what the draw of people does to all of them."""
    random = np.random.default_rng(seed)
    shared = random.normal(0, 0.05, 200)
    for stage, rate in rates.items():
        drawn = (rate + shared + random.normal(0, spread, 200)).tolist()

        def change(result, rate=rate, drawn=drawn):
            result["metrics"] = {"tar@1e-02": rate, "tar@1e-03": rate / 2}
            result["resampled"] = {"tar@1e-02": drawn}

        edit(folder, stage, change)


def described(folder: Path, **changes: dict) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    for stage in summary["stages"]:
        stage["federated"] = stage["name"] == "federate"
        stage |= changes.get(stage["name"], {})
    (folder / "summary.json").write_text(json.dumps(summary))


class Page(HTMLParser):
    """Checks that elements are properly nested, and collects what a reader, or an attacker, would look for."""

    VOID = frozenset({"meta", "br", "link", "img", "input"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.ids, self.text = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())
