"""What people see of a run at a server while it goes on: at the server's own screen, and with `personae watch`."""

from pathlib import Path

import pytest
from test_server import EXPERIMENT, Everyone, clients
from typer.testing import CliRunner

from fake import as_a_server  # noqa: F401 - the fixture
from personae.cli import app
from personae.deployment.plan import Conditions
from personae.deployment.serve import _Follower, prepare
from personae.deployment.server import main
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import deal
from personae.experiment.materials import Materials
from personae.report.records import read_run


def test_a_server_tells_stage_round_loss_and_time_and_its_run_can_be_watched(
    tmp_path: Path,
) -> None:
    experiment = parse_experiment(EXPERIMENT, "test")
    dealt = deal(Materials(experiment, Execution(cache=tmp_path / "cache")), tmp_path / "dealt")
    out, told = tmp_path / "out", []
    prepare(experiment, out, [path.stem for path in dealt], Conditions(deadline=120, wait=1), resume=False)
    follower = _Follower(out, experiment.recipe, told.append)
    watched = CliRunner().invoke(app, ["watch", str(out), "--once"])
    assert watched.stdout == "stage 1 of 3, pretrain, round 0 of 1\n"
    desks = clients(tmp_path / "homes", dealt)
    with pytest.raises(ConnectionError):
        main(Everyone(out, desks, breaks_after=9), {"out": str(out)})
    follower._report()
    record = read_run(out).records["federate"]
    last, loss = max(record.seconds), record.loss
    assert 0 < last < 3
    assert told[0].startswith("stage 1 of 3, pretrain, round 1 of 1, loss ")
    assert told[last].startswith(f"stage 2 of 3, federate, round {last} of 3, loss {loss[last]:.2f}, about ")
    assert told[last].endswith(" s left")
    watched = CliRunner().invoke(app, ["watch", str(out), "--once", "--page"])
    assert told[last] in watched.stdout
    assert (out / "watch.html").is_file()
    before = len(told)
    main(Everyone(out, desks), {"out": str(out)})
    follower._report()
    assert [line.partition(", loss")[0] for line in told[before:]] == [
        *(f"stage 2 of 3, federate, round {number} of 3" for number in range(last + 1, 4)),
        "stage 3 of 3, adapt, round 1 of 1",
    ]
    assert CliRunner().invoke(app, ["watch", str(out), "--once"]).stdout == "finished\n"
