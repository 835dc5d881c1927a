"""The demo shows what it promises on the seed that ships and on nine others: each step is more than noise."""

from pathlib import Path

import pytest

from personae import load_experiment, run_experiment
from personae.report.measured import Difference, difference
from personae.report.records import read_run
from personae.report.verdict import verdict
from personae.screen.demonstration import WIDTH, last_lines

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(10))
def test_every_step_is_visible_in_the_last_ten_lines(tmp_path: Path, seed: int) -> None:
    result = run_experiment(load_experiment("demo", [f"seed={seed}"]), tmp_path / "run", workers=2)
    run = read_run(tmp_path / "run")
    models = {model.stage.name: model for model in verdict(run).models}

    def gain(one: str, other: str, question: str) -> Difference:
        return difference(models[one].figures[question], models[other].figures[question])

    steps = {
        "together over alone": gain("together", "alone", "new"),
        "recommended over together": gain("recommended", "together", "new"),
        "personal over shared": gain("personal", "recommended", "own"),
    }
    print(f"seed {seed}:", {name: step.text for name, step in steps.items()})
    assert not [name for name, step in steps.items() if step.value <= 0 or not step.beyond_noise]

    lines = last_lines(run, result.report.relative_to(tmp_path), "personae demo --all")
    print("\n".join(lines))
    assert len(lines) <= 10
    assert max(map(len, lines)) <= WIDTH
    said = " ".join(lines)
    assert said.startswith("recommended recognises")
    assert "not noise" in said
    pooled = gain("pooled", "recommended", "new")
    assert ("pooled is ahead" in said) == (pooled.value > 0 and pooled.beyond_noise)
    assert "No face left a client" in said
