"""A run while it is going on: where its stages stand, in words and as a page."""

import threading
from pathlib import Path

import pytest

from fakeruns import Page, fake_run
from personae.report.records import Run, read_run
from personae.report.watching import PAGE, headline, standings, write_watch_page
from personae.screen import watching


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The second of three stages has completed two of five rounds."""
    run = fake_run(tmp_path, clients=2, federated_rounds=5)
    for name in ("federate", "central"):
        (run / "evaluation" / f"{name}.json").unlink()
    for record in ("metrics.jsonl", "timing.jsonl"):
        lines = (run / record).read_text().splitlines(keepends=True)
        late = [f'"federate", "round": {number}' for number in (3, 4, 5)]
        kept = [line for line in lines if '"central"' not in line and not any(each in line for each in late)]
        (run / record).write_text("".join(kept))
    return run


def test_where_each_stage_stands(folder):
    found = standings(read_run(folder))
    assert [each.state for each in found] == ["finished", "running", "waiting"]
    assert [each.of for each in found] == ["4 of 4", "2 of 5", "0 of 6"]
    seconds = read_run(folder).records["federate"].seconds
    assert found[1].left == f"about {sum(seconds.values()) / 2 * 3:.1f} s"
    line = headline(read_run(folder))
    assert line.startswith(f"stage 2 of 3, federated, round 2 of 5, loss {found[1].loss}, about ")


def test_the_page_loads_itself_until_the_run_is_finished(folder, tmp_path_factory):
    text = write_watch_page(read_run(folder), folder, 5).read_text()
    assert '<meta http-equiv="refresh" content="5">' in text
    assert "script" not in Page(text).tags
    assert '<progress value="2" max="5"' in text
    whole = fake_run(tmp_path_factory.mktemp("whole"), clients=2, federated_rounds=5)
    text = write_watch_page(read_run(whole), whole, 5).read_text()
    assert "refresh" not in text
    assert 'href="report.html"' in text


def test_a_run_that_has_just_begun(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert headline(read_run(tmp_path)) == "begun; no round is complete yet"
    assert write_watch_page(read_run(tmp_path), tmp_path, 5) == tmp_path / PAGE


def test_watching_ends_with_the_run_and_says_each_thing_once(folder, capsys, tmp_path_factory):
    whole = fake_run(tmp_path_factory.mktemp("whole"), clients=2, federated_rounds=5)
    seen: list[Run] = []

    def later(run: Run) -> None:
        seen.append(run)
        for path in ("metrics.jsonl", "timing.jsonl", "evaluation/federate.json", "evaluation/central.json"):
            (folder / path).write_bytes((whole / path).read_bytes())

    watcher = threading.Thread(target=watching.watch, args=(folder, 0.01, later))
    watcher.start()
    watcher.join(60)
    assert not watcher.is_alive()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines)) == 2
    assert lines[0].startswith("stage 2 of 3")
    assert lines[1] == "finished"
    assert len(seen) == 2
