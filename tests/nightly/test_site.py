"""The site as browsers show it: what is rendered there, how it is used, who can read it."""

import itertools
import json
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
import torch

from benchmarks.site import served
from generator.answers.questions import TEMPLATE
from tests.conftest import Render
from tests.support.browser import opened as opened_alone
from tests.support.browser import served_by, violations
from tests.support.processes import output_of
from tests.support.projects.porting import side
from website.render import Template

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1360, "height": 860}


def opened(browser: "Browser", address: str, **options: Any) -> AbstractContextManager["Page"]:
    return opened_alone(browser, address, served_by(address), **{"viewport": DESK, **options})


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole") / "site"


@pytest.fixture(scope="module")
def whole_site(packages: dict[str, Path], site_folder: Path) -> Iterator[str]:
    if find_spec("furo") is None:
        pytest.skip('pip install -e ".[site]" installs Sphinx')
    report, site = site_folder.with_name("report.html"), site_folder
    report.write_text('<link rel="icon" href="data:,"><p>All passed')
    output_of([sys.executable, "-m", "website.build", str(site), "--report", str(report)], TEMPLATE)
    assert json.loads((site / "preview" / "settings.json").read_text())["source"] == "gh:org/ddp-template"
    with served(site) as address:
        yield address


def test_the_whole_site_is_searched_and_accessible(whole_site: str, browser: "Browser", axe: str) -> None:
    """What users read comes before what maintainers read."""
    looks = [("light", DESK), ("dark", PHONE)]
    for name, (scheme, viewport) in itertools.product(
        ("index", "start", "project", "options", "launching/slurm"), looks
    ):
        with opened(browser, f"{whole_site}/{name}.html", color_scheme=scheme, viewport=viewport) as page:
            assert violations(page, axe) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    with opened(browser, f"{whole_site}/search.html?q=checkpoint") as page:
        page.locator("#search-results li").first.wait_for()
        page.locator("#search-results .search-summary", has_text="found").wait_for()
        found = page.locator("#search-results li > a").evaluate_all("links => links.map(link => link.pathname)")
        kinds = [
            bool(re.match("/(decisions|adding|maintaining|testing|matrix|updates|changelog)", path)) for path in found
        ]
        assert True in kinds
        assert sorted(kinds) == kinds
        captions = page.locator(".sidebar-tree .caption").all_inner_texts()
        assert [caption.lower() for caption in captions] == [
            "get started", "how to", "reference", "understand", "work on the template",
        ]  # fmt: skip


class Links(HTMLParser):
    """The addresses that a page names, and the places that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {""}
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [link for name in ("href", "src") if (link := found.get(name))]
        self.places.add(found.get("id") or "")


def test_no_link_is_dead_and_no_option_has_a_dash(whole_site: str, site_folder: Path) -> None:
    """Pages fetch nothing from elsewhere, and `--resume` has its two hyphens."""
    pages = {page: Links(page) for page in site_folder.rglob("*.html")}
    dead = []
    for page, found in pages.items():
        for link in (link for link in found.links if not re.match("[a-z]+:", link)):
            path, _, place = link.partition("#")
            target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            places = {unquote(place)} if "preview" in target.parts else pages.get(target, found).places  # of answers
            if not target.exists() or (target.suffix == ".html" and unquote(place) not in places):
                dead.append((page.name, link))
    assert dead == []
    assert len(pages) > 60
    text = re.sub(r"<[^>]*>", "", (site_folder / "project.html").read_text())
    assert "--resume" in text
    assert not re.search("[\u2013\u2014]resume", text)


def test_the_landing_page_has_numbers_a_command_and_a_picture(
    whole_site: str, browser: "Browser", snapshot: Path, legal: Any
) -> None:
    """They come from the measurements, the template and copier.yml."""
    options = {"permissions": ["clipboard-read", "clipboard-write"]}
    with opened(browser, f"{whole_site}/index.html", **options) as page:
        speed, damaged, combinations = page.locator(".proofs strong").all_inner_texts()
        assert f"| {speed.split()[0]} times the minimal DDP loop |" in (TEMPLATE / "README.md").read_text()
        assert damaged == "0"
        assert combinations == f"{len(legal):,}"
        page.click("button.copybtn >> nth=0")
        command = page.evaluate("navigator.clipboard.readText()")
        assert command.splitlines()[-1] == "copier copy gh:org/ddp-template myproj"
        assert page.locator("meta[property='og:image']").count() == 1
        drawn = page.locator(".picture pre").text_content() or ""
        assert "with optimizer_step.autocast" in page.locator(".picture .added").first.inner_text()
        template = Template(snapshot, "source")
        assert drawn.strip() in template.render(template.ask({"launcher": "slurm"}))["train.py"][1].decode()
        page.click(".picture a")
        page.locator("#command", has_text="--data launcher=slurm --data logging=wandb").wait_for()


def code_of(page: "Page", name: str) -> str:
    return page.locator(f".excerpt[data-name='{name}'] pre").text_content() or ""


def test_the_page_on_the_loop_switches_its_code_by_keyboard(whole_site: str, browser: "Browser", project: Any) -> None:
    with opened(browser, f"{whole_site}/loop.html") as page:
        before = code_of(page, "train_step")
        page.focus("select[name=amp]")
        page.keyboard.press("ArrowDown")
        assert page.url.endswith("loop.html#amp=none")
        marked = page.locator(".excerpt[data-name=train_step] mark").all_inner_texts()
        assert any("run.optimizer.step()" in line for line in marked)
        written = (project(amp="none") / "train.py").read_text()
        assert before not in written
        assert code_of(page, "train_step") in written
        page.click("article a[href*='loop.zh.html']")
        page.locator("html[lang=zh-CN] .choices").wait_for()
        assert code_of(page, "train_step") in written


@pytest.mark.parametrize(
    ("name", "scheme", "viewport"), [("loop", "light", DESK), ("loop.zh", "dark", PHONE)], ids=["loop", "loop.zh"]
)
def test_the_page_on_the_loop_is_accessible_and_needs_no_script(
    name: str, scheme: str, viewport: dict[str, int], whole_site: str, browser: "Browser", axe: str
) -> None:
    address = f"{whole_site}/{name}.html"
    with opened(browser, address, java_script_enabled=False) as page:
        assert "def train_step" in code_of(page, "train_step")
        assert not page.is_visible(".choices")
    with opened(browser, address, color_scheme=scheme, viewport=viewport) as page:
        assert violations(page, axe) == []
        page.select_option("select[name=launcher]", "kubernetes")
        page.select_option("select[name=amp]", "apex")
        assert page.locator("mark").count() > 9
        assert violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        page.locator(".drawing").last.scroll_into_view_if_needed()
        assert page.locator(".choices").bounding_box()["y"] < 100  # type: ignore[index]


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    refused = output_of([sys.executable, "-m", "website.build", str(tmp_path)], TEMPLATE, code=1)
    assert refused == f"{tmp_path} holds something else: give a new or empty folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_diffs_make_a_script_for_one_gpu_train_on_many(project: Render, tmp_path: Path) -> None:
    """Two processes arrive at the weights of one. Each diff changes the script that the diffs before it have made."""
    page = (TEMPLATE / "website" / "pages" / "loop.md").read_text()
    [script] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "digits.npz").write_bytes((project() / "ddp_project" / "digits.npz").read_bytes())
    (tmp_path / "script.py").write_text(script)
    alone = output_of([sys.executable, "script.py"], tmp_path)
    for diff in re.findall(r"^```diff\n@@[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for change in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
            before = re.compile("^" + re.escape(side(change, "-")), re.MULTILINE)
            assert len(before.findall(script)) == 1, change
            script = before.sub(side(change, "+").replace("\\", r"\\"), script)
    (tmp_path / "script.py").write_text(script)
    weights = []
    for processes in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        printed = output_of([*command, "script.py"], tmp_path)
        weights.append(torch.load(tmp_path / "checkpoint.pt")["model"])
        assert accuracy_of(printed) > 0.85
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    assert accuracy_of(alone) > 0.85


def accuracy_of(printed: str) -> float:
    """Return the accuracy in the last line."""
    return float(printed.splitlines()[-1].removeprefix("epoch 19: accuracy "))
