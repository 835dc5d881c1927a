"""The report in a real Chromium: light, dark, on a phone and printed; the pictures are kept in build/screenshots."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import CHROMIUM, REASON, Page, browser
from personae.experiment.run import run_experiment
from personae.report.comparison import compare
from personae.report.html import write_comparison
from personae.report.records import read_run
from personae.report.watching import write_watch_page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=REASON)]

PICTURES = Path(os.environ.get("PERSONAE_SCREENSHOTS", "build/screenshots"))
SCREEN, PHONE = (1280, 800), (390, 844)
RECIPE = """
name = "as in the demo"
network = { name = "small", embedding = 16, height = 32, width = 32 }
partition = { by = "equal", clients = 4 }

[data]
public = { source = "synthetic", identities = 20, images = 6 }
private = { source = "synthetic", first = 20, identities = 24, images = 8 }
heldout = { source = "synthetic", first = 44, identities = 20, images = 6 }

[evaluation]
pairs_per_fold = 20
client_fars = [1e-1]
personalized = { fars = [1e-2], fpirs = [1e-1] }

[[stages]]
name = "pretrain"
label = "pre-trained"
rounds = 2
algorithm = { name = "pretrain", training = { lr = 0.1, batch_size = 32 } }

[[stages]]
name = "federate"
label = "federated (FedPE)"
rounds = 2
evaluate_every = 1
algorithm = { name = "fedpe", training = { lr = 0.05, batch_size = 16 } }

[[stages]]
name = "central"
label = "central (upper bound)"
after = "pretrain"
rounds = 2
algorithm = { name = "central", training = { lr = 0.05, batch_size = 32 } }

[[stages]]
name = "personalize"
label = "generic and personal (FedFR)"
after = "pretrain"
rounds = 1
algorithm = { name = "fedfr", training = { lr = 0.02, batch_size = 16 } }
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, faces_cache: Path) -> Path:
    """Of a run with the stages of the demo."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "recipe.toml").write_text(RECIPE)
    PICTURES.mkdir(parents=True, exist_ok=True)
    return run_experiment(folder / "recipe.toml", folder / "run", cache=faces_cache).report


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def height(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollHeight"))


def test_the_first_screen_has_the_verdict_the_methods_and_the_contents(report: Path, page: Page):
    page.open(report, *SCREEN)
    page.screenshot(PICTURES / "report-light.png")
    for part in (".verdict .first", ".chart tbody tr:last-child", ".left .kinds", ".contents"):
        top = page.evaluate(f"document.querySelector({json.dumps(part)}).getBoundingClientRect().top")
        assert 0 <= top < SCREEN[1], part
    assert height(page) <= 4 * SCREEN[1]


def test_it_asks_for_nothing_and_nothing_goes_wrong(report: Path, page: Page):
    page.open(report, *SCREEN)
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.requests == [report.as_uri()]
    assert page.problems == []


def test_dark_is_dark_and_can_be_read(report: Path, page: Page):
    def contrasts(*, dark: bool) -> list[float]:
        page.open(report, *SCREEN, dark=dark)
        script = """(() => {
            const light = c => { const [r, g, b] = c.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
                .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b };
            const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
                if (!/, 0\\)$|transparent/.test(c)) return c } };
            return ['.first', '.verdict li', '.caption', '.best', '.role', '.kinds small', '.alarm', '.lead', 'a',
                    '.switch input:checked + label'].map(s => document.querySelector(s)).map(e => {
                const pair = [light(getComputedStyle(e).color), light(ground(e))].sort((a, b) => b - a);
                return (pair[0] + 0.05) / (pair[1] + 0.05) }) })()"""
        found: list[float] = page.evaluate(script)
        return found

    light, dark = contrasts(dark=False), contrasts(dark=True)
    page.screenshot(PICTURES / "report-dark.png")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    assert min(light + dark) >= 4.5  # WCAG AA


@pytest.mark.parametrize("unfolded", [False, True])
def test_nothing_overflows_on_a_phone(report: Path, page: Page, unfolded: bool):
    page.open(report, *PHONE)
    if unfolded:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    else:
        page.screenshot(PICTURES / "report-phone.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_everything_is_printed(report: Path, page: Page):
    page.open(report, *SCREEN, media="print")
    page.screenshot(PICTURES / "report-print.png")
    unseen = page.evaluate("[...document.querySelectorAll('figure, pre, dl')].filter(e => !e.checkVisibility()).length")
    assert unseen == 0
    printed = page.pdf(PICTURES / "report-print.pdf").read_bytes()
    assert len(re.findall(rb"/Type /Page\b", printed)) >= 4


def test_a_link_of_the_contents_unfolds_its_section(report: Path, page: Page):
    page.open(report, *SCREEN)
    assert not page.evaluate("document.querySelector('#roc figure').checkVisibility()")
    page.evaluate("document.querySelector('.contents a[href=\"#roc\"]').focus()")
    page.press("Enter")
    assert page.evaluate("document.querySelector('#roc figure').checkVisibility()")


def test_the_switch_shows_one_metric_at_a_time(report: Path, page: Page):
    page.open(report, *SCREEN)
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    shown = "[...document.querySelectorAll('.of-metric')].filter(e => e.checkVisibility()).map(e => e.className)"
    before = page.evaluate(shown)
    page.evaluate("document.querySelector('.switch input:not(:checked)').click()")
    after = page.evaluate(shown)
    assert before
    assert after
    assert not set(before) & set(after)
    page.screenshot(PICTURES / "report-unfolded.png", whole=True)


def test_a_word_explains_itself_by_keyboard(report: Path, page: Page):
    page.open(report, *SCREEN)
    page.evaluate("document.querySelector('.term').focus()")
    page.press("Enter")
    assert page.evaluate("document.querySelector('.tip:popover-open').checkVisibility()")
    page.screenshot(PICTURES / "report-word.png")
    page.press("Escape")
    assert page.evaluate("document.querySelector('.tip:popover-open')") is None


def test_a_screen_reader_finds_its_way(report: Path, page: Page):
    page.open(report, *SCREEN)
    assert page.evaluate("[...document.querySelectorAll('header, main, nav')].map(e => e.localName)") == [
        "header",
        "main",
        "nav",
    ]
    assert page.evaluate("[...document.querySelectorAll('th')].every(e => e.scope)")
    assert page.evaluate("[...document.querySelectorAll('figure [role=img]')].every(e => e.ariaLabel.length > 20)")
    assert page.evaluate("[...document.querySelectorAll('h1, h2')].map(e => e.localName)[0]") == "h1"


def test_comparisons_and_runs_in_progress_have_pages_as_good(report: Path, page: Page, tmp_path: Path):
    run = report.parent
    found = compare([run, Path(shutil.copytree(run, tmp_path / "other"))])
    write_comparison(found, tmp_path / "comparison.html")
    (tmp_path / "other" / "evaluation" / "personalize.json").unlink()
    watched = write_watch_page(read_run(tmp_path / "other"), tmp_path / "other", 5)
    for path, name in ((tmp_path / "comparison.html", "comparison"), (watched, "watch")):
        page.open(path, *PHONE)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        page.open(path, *SCREEN)
        page.screenshot(PICTURES / f"{name}.png")
        assert page.problems == []
        assert page.requests == [path.as_uri()]
