"""The last lines of the demo, on records made by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from personae.report.records import read_run
from personae.screen.demonstration import WIDTH, last_lines

CLIENTS = [f"client-{number}" for number in range(6)]
WEIGHTS = 1_250_000
STAGES = {  # name: label, after, what leaves, whether faces are pooled
    "alone": ("each alone", "", ["Scalars"], False),
    "together": ("together (FedPE)", "", ["ModelState", "Count", "Scalars"], False),
    "recommended": ("recommended", "", ["ModelState", "Count", "Scalars"], False),
    "personal": ("personal", "recommended", ["Scalars"], False),
    "pooled": ("pooled", "", [], True),
}
NEW = {"alone": 0.30, "together": 0.45, "recommended": 0.58, "personal": 0.52, "pooled": 0.63}
OWN = {"alone": 0.66, "together": 0.70, "recommended": 0.74, "personal": 0.81, "pooled": 0.79}


def written(folder: Path, new: dict[str, float] = NEW, own: dict[str, float] = OWN, noise: float = 0.005) -> Path:
    """A run of the demo in which rates vary by this much from resample to resample and from client to client."""
    random = np.random.default_rng(0)
    (folder / "evaluation").mkdir(parents=True)
    lines: dict[str, list[dict[str, object]]] = {"metrics": [], "timing": [], "ledger": []}
    for name, (_, _, discloses, pools) in STAGES.items():
        personal = discloses == ["Scalars"]
        place = {"stage": name, "round": 1}
        lines["timing"].append({**place, "seconds": 40.0})
        event = {"event": "round", "participants": [], "rejected": {}, "failed": {}, "scalars": {"loss": 1.0}}
        lines["metrics"].append({**place, **event})
        shared = 0.1 if name == "alone" else new["recommended"] if name == "personal" else new[name]
        lines["metrics"].append({**place, "event": "global", "metrics": {"heldout/tar@1e-02": shared}})
        told = {}
        for client in CLIENTS:
            mine = own[name] + noise * random.standard_normal()
            told[client] = {"global/tar@1e-02": OWN["recommended"] if personal else mine, "personal/tar@1e-02": mine}
            if personal:
                told[client]["personal/heldout/tar@1e-02"] = new[name] + noise * random.standard_normal()
            for kind in () if pools else discloses:
                size = WEIGHTS if kind == "ModelState" else 8
                entry = {"client": client, "direction": "up", "payload": kind, "bytes": size}
                lines["ledger"].append({**place, **entry})
        lines["metrics"].append({**place, "event": "personal", "clients": told, "new": []})
        resampled = (shared + noise * random.standard_normal(200)).tolist()
        result = {"metrics": {"tar@1e-02": shared}, "resampled": {"tar@1e-02": resampled}}
        result |= {"roc": {"far": [0.01], "tar": [shared]}}
        result |= {"histogram": {"edges": [-1.0, 1.0], "genuine": [1.0], "impostor": [1.0]}}
        (folder / "evaluation" / f"{name}.json").write_text(
            json.dumps({"stage": name, "round": 1, "benchmarks": {"heldout": result}})
        )
    for book, entries in lines.items():
        (folder / f"{book}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    described = [
        {"name": name, "label": label, "algorithm": name, "rounds": 1, "discloses": discloses}
        | {"pools_faces": pools, "federated": not pools, "after": after or None}
        for name, (label, after, discloses, pools) in STAGES.items()
    ]
    (folder / "summary.json").write_text(json.dumps({"stages": described}))
    (folder / "config.json").write_text(json.dumps({"name": "demo"}))
    (folder / "environment.json").write_text("{}")
    return folder


def lines_of(folder: Path) -> list[str]:
    return last_lines(read_run(folder), Path("runs/demo/report.html"), "personae demo --all")


def test_ten_lines_of_eighty_columns_say_it_all(tmp_path: Path) -> None:
    lines = lines_of(written(tmp_path / "run"))
    assert len(lines) <= 10
    assert max(map(len, lines)) <= WIDTH
    said = " ".join(lines)
    assert "recommended recognises 58% of new people, each alone 30% (+28" in said
    assert "not noise" in said
    assert ", noise" not in said
    added = own_people(tmp_path / "run", "personal") - own_people(tmp_path / "run", "recommended")
    assert f"personal adds {added:+.1f} ±" in said
    assert "pooled is ahead (+5.0 ±" in said
    assert "No face left a client (except pooled): 15.0 MB of weights, figures and counts." in said
    assert lines[-1] == "Trained for 3 min 20 s; report: runs/demo/report.html; next: personae demo --all"
    header, *rows = lines[-7:-1]
    assert " ".join(header.split()) == "recognised at 1% false accepts new people own people worst client sent"
    assert [row.split("  ")[0] for row in rows] == [label for label, *_ in STAGES.values()]
    cells = {row.split("  ")[0]: row.split()[-5:] for row in rows}
    assert cells["recommended"][-5:-3] == ["58.0%", f"{own_people(tmp_path / 'run', 'recommended'):.1f}%"]
    assert [row.endswith(("figures", "MB", "all faces")) for row in rows] == [True] * 5


def own_people(folder: Path, stage: str) -> float:
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clients = next(event["clients"] for event in events if event["event"] == "personal" and event["stage"] == stage)
    return float(100 * np.mean([figures["personal/tar@1e-02"] for figures in clients.values()]))


@pytest.mark.parametrize("pooled", [0.55, 0.581])
def test_pooled_faces_that_are_not_ahead_are_said_not_to_be(tmp_path: Path, pooled: float) -> None:
    assert "pooled is not ahead." in " ".join(lines_of(written(tmp_path / "run", new=NEW | {"pooled": pooled})))


def test_what_may_be_noise_is_called_that(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", new=NEW | {"alone": 0.57}, own=OWN | {"personal": 0.745}, noise=0.05)
    said = " ".join(lines_of(folder))
    assert len(lines_of(folder)) <= 10
    assert said.count(", noise") == 2
    assert "not noise" not in said
