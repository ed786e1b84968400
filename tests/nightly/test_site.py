"""The site and the report of a run as browsers show them: what is rendered there, how it is used, who can read it."""

import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.site import served
from generator.answers.combinations import covering
from generator.answers.questions import TEMPLATE
from generator.render.project import NAME, Tree, read_tree
from tests.support.browser import opened as opened_alone
from tests.support.processes import output_of
from website.build import build_preview, unpack_packages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1360, "height": 860}
LOADED = 120_000  # milliseconds until Python is there, on a machine with much to do


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if not shutil.which("npm"):
        pytest.skip("no npm here: install Node.js")
    return unpack_packages(tmp_path_factory.mktemp("npm"))


@pytest.fixture(scope="module")
def axe(packages: dict[str, Path]) -> str:
    return (packages["axe-core"] / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def site(snapshot: Path, packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    build_preview(folder / "preview", snapshot, str(snapshot), None)
    with served(folder) as address:
        yield f"{address}/preview/index.html"


def opened(browser: "Browser", address: str, **options: Any) -> AbstractContextManager["Page"]:
    own = ("/".join(address.split("/")[:3]), "data:", "blob:")
    return opened_alone(browser, address, own, **{"viewport": DESK, **options})


def wait_for(page: "Page", command: str) -> None:
    page.locator("#command", has_text=command).wait_for(timeout=LOADED)


def downloaded(page: "Page") -> Tree:
    with page.expect_download(timeout=LOADED) as download:
        page.click("#zip")
    with zipfile.ZipFile(download.value.path()) as archive:
        return {
            entry.filename.removeprefix("myproj/"): (bool(entry.external_attr >> 16 & 0o100), archive.read(entry))
            for entry in archive.infolist()
        }


def test_a_browser_renders_the_bytes_of_copier(site: str, browser: "Browser", legal: Any, project: Any) -> None:
    with opened(browser, site) as page:
        for combination in covering(legal, 1):
            answers = {key: str(value).lower() for key, value in combination.answers}
            link = "&".join(f"{key}={value}" for key, value in {**NAME, **answers}.items())
            page.goto(f"{site}#{link}")
            page.locator("#zip:enabled").wait_for()
            files = downloaded(page)
            executable, content = files[".copier-answers.yml"]
            # Without the lines that say where the template was found.
            own = b"".join(line for line in content.splitlines(True) if not line.startswith(b"_"))
            files |= {".copier-answers.yml": (executable, own)}
            assert files == read_tree(project(**dict(combination.answers)))


def test_the_form_by_keyboard(site: str, browser: "Browser") -> None:
    with opened(browser, site) as page:
        page.focus("input[name=launcher]:checked")
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        wait_for(page, "launcher=slurm")
        page.focus("input[name=description]")
        page.keyboard.press("Control+A")
        page.keyboard.type("Mine")
        wait_for(page, "description=Mine")
        assert page.url.endswith("#launcher=slurm&description=Mine")
        page.focus("#tree [tabindex='0']")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        opened_file = page.get_attribute("#tree :focus", "data-path")
        assert opened_file is not None
        assert opened_file in page.inner_text("#path")
        assert f"file={opened_file}" in page.url


def test_changes_are_marked_and_impossible_answers_say_why(site: str, browser: "Browser") -> None:
    with opened(browser, site) as page:
        page.check("input[name=amp][value=apex]")
        wait_for(page, "amp=apex")
        page.locator("#code .added").first.wait_for()
        added = page.locator("#code .added code").all_inner_texts()
        assert any("precision.initialize" in line for line in added)
        assert "changed" in page.inner_text("#tree [data-path='train.py']")
        assert page.locator("#tree [data-path='LICENSE'] .mark").count() == 0
        page.check("input[name=task][value=tabular]")
        wait_for(page, "task=tabular")
        assert "new" in page.inner_text("#tree [data-path='myproj/diabetes.npz']")
        assert "gone" in page.inner_text("#tree [data-path='myproj/digits.npz']")

        assert page.is_disabled("input[name=backend][value=mpi]")
        page.check("input[name=launcher][value=mpirun]")
        wait_for(page, "launcher=mpirun")
        page.check("input[name=backend][value=mpi]")
        wait_for(page, "backend=mpi")
        page.check("input[name=launcher][value=slurm]")
        page.locator("#question-backend-problem", has_text="needs launcher=mpirun").wait_for()
        assert page.is_disabled("#zip")
        page.goto(f"{site}#package_name=torch")
        page.locator("#question-package_name-problem", has_text="try torch_ddp").wait_for()


def violations(page: "Page", axe: str) -> Any:
    page.evaluate(axe)
    script = "axe.run().then(found => found.violations.map(each => [each.id, each.nodes.map(node => node.html)]))"
    return page.evaluate(script)


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESK), ("dark", PHONE)], ids=["desk", "phone"])
def test_the_preview_is_accessible(scheme: str, viewport: Any, site: str, browser: "Browser", axe: str) -> None:
    with opened(browser, site, color_scheme=scheme, viewport=viewport) as page:
        page.locator("#code .row").first.wait_for()
        assert violations(page, axe) == []
        page.check("input[name=amp][value=apex]")
        page.locator("#code .added").first.wait_for(timeout=LOADED)
        assert violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


@pytest.fixture(scope="module")
def whole_site(packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if find_spec("furo") is None:
        pytest.skip('pip install -e ".[site]" installs Sphinx')
    folder = tmp_path_factory.mktemp("whole")
    report, site = folder / "report.html", folder / "site"
    report.write_text('<link rel="icon" href="data:,"><p>All passed')
    output_of([sys.executable, "-m", "website.build", str(site), "--report", str(report)], TEMPLATE)
    assert json.loads((site / "preview" / "settings.json").read_text())["source"] == "gh:org/ddp-template"
    with served(site) as address:
        yield address


def test_the_whole_site_is_linked_searched_and_accessible(whole_site: str, browser: "Browser", axe: str) -> None:
    for scheme in ("light", "dark"):
        with opened(browser, f"{whole_site}/index.html", color_scheme=scheme) as page:
            assert violations(page, axe) == []
    for link in ("report.html", "exact.html", "loop.html", "preview/index.html"):
        with opened(browser, f"{whole_site}/index.html") as page:
            page.click(f"a[href='{link}'] >> visible=true >> nth=0")
            page.wait_for_url(f"**/{link}")
    with opened(browser, f"{whole_site}/search.html?q=SyncBatchNorm") as page:
        page.locator("#search-results li").first.wait_for()


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
