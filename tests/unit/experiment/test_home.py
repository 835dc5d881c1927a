"""What a client keeps of runs over a network."""

from pathlib import Path

from personae.experiment.home import OwnRun


def test_a_run_makes_its_stages_once(tmp_path: Path):
    """Every request asks for its stage, and to check an experiment takes longer than to read a model."""
    stages = [{"name": name, "algorithm": {"name": "fedpe"}} for name in ("first", "second")]
    own = OwnRun(
        folder=tmp_path,
        told={"name": "x", "stages": stages},
        data="faces",
        unlabelled=False,
        handling={},
        faces="",
        public=None,
        begun="",
        environment={},
    )
    assert own.stage("second") is own.stage("second")
    assert [stage.name for stage in own.recipe] == ["first", "second"]
