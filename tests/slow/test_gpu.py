"""On a GPU, what comes from disk or from the spool meets what is on the device."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from personae.algorithms import ALGORITHMS
from personae.runtime import round as rounds
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.inprocess import local_transport
from personae.runtime.spool import spool
from toys import NAMES, Rehearsal, quickly, stage_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]
RECIPE = tuple(stage_of(quickly(kind()), rounds=3) for kind in ALGORITHMS.values())


def rehearse(folder: Path, clients_at_once: int = 1) -> Rehearsal:
    run = Rehearsal(folder, RECIPE, source=NAMES[0])
    transport = local_transport(run.federation, clients_at_once, "cuda")
    replace(run.engine(transport), device="cuda").run()
    transport.close()
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    return rehearse(tmp_path_factory.mktemp("whole"))


def test_every_algorithm_goes_through_its_rounds(whole: Rehearsal):
    assert all(event["failed"] == event["rejected"] == {} for event in whole.notebook.rounds())
    assert len(whole.notebook.rounds()) == 3 * len(RECIPE)


def test_clients_side_by_side_end_where_clients_in_a_row_do(whole: Rehearsal, tmp_path: Path):
    beside = rehearse(tmp_path, 3)
    assert all(event["failed"] == event["rejected"] == {} for event in beside.notebook.rounds())
    for name in ALGORITHMS:
        begin = beside.federation.backbone().flat
        moved, wanted = beside.final(name).cpu() - begin, whole.final(name).cpu() - begin
        assert (moved - wanted).norm() < 1e-2 * wanted.norm(), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_resumes_where_it_was(whole: Rehearsal, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    class Cut(BaseException):
        pass

    save = Checkpoints.save

    def cut(self, stage, number, *rest):
        save(self, stage, number, *rest)
        if (stage.name, number) == (name, 2):
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", cut)
        with pytest.raises(Cut):
            rehearse(tmp_path)
    resumed = rehearse(tmp_path)
    assert torch.equal(resumed.final(name), whole.final(name))


def test_updates_from_memory_and_from_disk_mix(whole: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rounds, "spool", lambda layout, folder: spool(layout, folder, 2 * 4 * layout.size + 64))
    spilled = rehearse(tmp_path)
    assert all(torch.equal(spilled.final(name), whole.final(name)) for name in ALGORITHMS)
