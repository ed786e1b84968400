"""The preview as browsers show it: before Python is loaded and after, by keyboard, on a phone, and for everybody."""

import re
import shlex
import sys
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.site import served
from generator.answers.combinations import covering
from generator.render.project import NAME, Tree, read_tree
from tests.support.browser import opened as opened_alone
from tests.support.browser import served_by, violations
from tests.support.processes import output_of
from website.build import build_preview
from website.preview import Preview
from website.render import Template

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

DESK: dict[str, Any] = {"viewport": {"width": 1360, "height": 860}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LOADED = 120_000  # milliseconds until Python is there, on a machine with much to do
CLIPBOARD = ["clipboard-read", "clipboard-write"]


@pytest.fixture(scope="module")
def site(snapshot: Path, packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    build_preview(folder / "preview", snapshot, str(snapshot), None)
    with served(folder) as address:
        yield f"{address}/preview/index.html"


@pytest.fixture(scope="module")
def expected(snapshot: Path) -> Preview:
    return Preview(Template(snapshot, str(snapshot)))


def opened(browser: "Browser", address: str, **options: Any) -> AbstractContextManager["Page"]:
    return opened_alone(browser, address, served_by(address), **{**DESK, "permissions": CLIPBOARD, **options})


@pytest.fixture
def without_python(browser: "Browser", site: str) -> Iterator[Any]:
    """Opens pages for which Python never comes: what they show was shipped."""
    pages = []

    def open_page(link: str = "", **options: Any) -> "Page":
        page = browser.new_page(**{**DESK, "permissions": CLIPBOARD, **options})
        page.route("**/*.wasm", lambda route: None)
        page.goto(f"{site}{link}")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.unroute_all(behavior="ignoreErrors")
        page.close()


def wait_for(page: "Page", command: str) -> None:
    page.locator("#command", has_text=command).wait_for(timeout=LOADED)


def wait_for_file(page: "Page") -> None:
    page.locator("#panes:not(.stale) #code > *").wait_for(timeout=LOADED)


def clipboard(page: "Page") -> str:
    return str(page.evaluate("navigator.clipboard.readText()"))


def downloaded(page: "Page", button: str, name: str) -> Path:
    with page.expect_download(timeout=LOADED) as download:
        page.click(button)
    assert download.value.suggested_filename == name
    return Path(download.value.path())


def unpacked(archive: Path, folder: str) -> Tree:
    with zipfile.ZipFile(archive) as packed:
        return {
            entry.filename.removeprefix(f"{folder}/"): (bool(entry.external_attr >> 16 & 0o100), packed.read(entry))
            for entry in packed.infolist()
        }


# ---- before Python is loaded ----
@pytest.mark.parametrize("device", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("way", ["link", "clicks"])
def test_slurm_and_wandb_are_copied_at_once(way: str, device: Any, without_python: Any, tmp_path: Path) -> None:
    """Copier writes the project of the command that a visitor copies while Python is still loading."""
    page = without_python("#launcher=slurm&logging=wandb" if way == "link" else "", **device)
    if way == "clicks":
        page.check("input[name=launcher][value=slurm]")
        page.check("input[name=logging][value=wandb]")
    page.click("#copy")
    command = clipboard(page)
    assert not page.is_visible("#code")  # only Python knows the files
    assert page.is_visible("#progress")
    output_of([sys.executable, "-m", *shlex.split(command)], tmp_path)
    answers = (tmp_path / "myproj" / ".copier-answers.yml").read_text()
    assert re.findall("^(?:launcher|logging): (.*)$", answers, re.MULTILINE) == ["slurm", "wandb"]
    assert page.input_value("input[name=launcher]:checked") == "slurm"


def test_what_is_shown_without_python_is_what_python_says(without_python: Any, legal: Any, expected: Preview) -> None:
    page = without_python()
    links = [{key: str(value).lower() for key, value in each.answers} for each in covering(legal, 2)]
    links += [{"launcher": "slurm", "backend": "mpi"}, {"backend": "mpi"}, {"task": "language", "colour": "red"}]
    links += [{}, *({step.split("=")[0]: step.split("=")[1]} for step in expected.steps())]
    script = "links => import('./shipped.js').then(({ formOf, projectOf }) => "
    script += "Promise.all(links.map(async (link) => [formOf(link), await projectOf(link)])))"
    complete = 0
    for link, (form, project) in zip(links, page.evaluate(script, links), strict=True):
        shown = expected.shown(link)
        assert (project or {**form, "files": shown["files"]}) == shown
        complete += project is not None
    assert complete > 20
    texts = [{"description": "Mine"}, {"launcher": "pigeon"}, {"sync_bn": "yes"}]
    assert [form["command"] for form, _ in page.evaluate(script, texts)] == [None] * 3


def test_a_first_answer_needs_no_python(without_python: Any, expected: Preview) -> None:
    page = without_python()
    page.check("input[name=amp][value=apex]")
    page.locator("#code .added", has_text="precision.initialize").first.wait_for()
    assert "amp=apex" in page.inner_text("#command")
    page.fill("input[name=description]", "Mine")
    page.locator("#progress").wait_for()
    assert page.is_disabled("#copy")
    assert "amp=apex" not in page.inner_text("#command")


def test_python_that_does_not_come_is_asked_for_again(browser: "Browser", site: str) -> None:
    """By the reader alone: the page does not load it once more on its own when it is idle."""
    page, late = browser.new_page(**DESK), list["Route"]()
    page.route("**/*.wasm", lambda route: route.abort())
    page.route("**/steps.json", lambda route: late.append(route))  # then the page loads Python while it is idle
    page.goto(f"{site}#launcher=slurm&logging=wandb")
    page.locator("#loading", has_text="Python could not be loaded").wait_for(timeout=LOADED)
    assert not page.is_visible("#panes")
    page.unroute("**/*.wasm")
    with page.expect_response("**/steps.json"):
        late[0].continue_()
    page.wait_for_timeout(100)
    page.click("#retry")
    wait_for_file(page)
    assert "srun" in page.inner_text("#code")
    page.close()


# ---- with Python ----
def test_a_browser_renders_the_bytes_of_copier(site: str, browser: "Browser", legal: Any, project: Any) -> None:
    with opened(browser, site) as page:
        for combination in covering(legal, 1):
            answers = {key: str(value).lower() for key, value in combination.answers}
            link = "&".join(f"{key}={value}" for key, value in {**NAME, **answers}.items())
            page.goto(f"{site}#{link}")
            page.locator("#panes:not(.stale)").wait_for(timeout=LOADED)
            files = unpacked(downloaded(page, "#zip", "ddp_project.zip"), "ddp_project")
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
        page.focus("#skip")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "file"
        assert "description=Mine" in page.url


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
        page.locator("#tree [data-path='myproj/diabetes.npz']", has_text="new").wait_for(timeout=LOADED)
        assert "gone" in page.inner_text("#tree [data-path='myproj/digits.npz']")

        assert page.is_disabled("input[name=backend][value=mpi]")
        page.check("input[name=launcher][value=mpirun]")
        page.check("input[name=backend][value=mpi]")
        page.check("input[name=launcher][value=slurm]")
        page.locator("#question-backend-problem", has_text="launcher=mpirun").wait_for()
        assert page.is_disabled("#zip")
        assert page.is_disabled("#copy")
        assert page.inner_text("#command") == ""


def test_a_bad_answer_is_named_linked_and_mended(site: str, browser: "Browser") -> None:
    with opened(browser, f"{site}#package_name=torch&launcher=slurm&backend=mpi&colour=red") as page:
        status = page.locator("#status")
        status.get_by_text("cannot be torch").wait_for(timeout=LOADED)
        status.get_by_role("button", name="package_name", exact=True).click()
        assert page.evaluate("document.activeElement.name") == "package_name"
        status.get_by_role("button", name="Use torch_ddp").click()
        status.get_by_role("button", name="Use launcher=mpirun").click()
        wait_for(page, "--data package_name=torch_ddp --data launcher=mpirun --data backend=mpi")
        status.get_by_role("button", name="Remove it").click()
        page.locator("#status", has_text="files").wait_for()
        assert page.url.endswith("#package_name=torch_ddp&launcher=mpirun&backend=mpi")


def test_answers_are_compared_with_the_last_or_the_defaults(site: str, browser: "Browser") -> None:
    with opened(browser, f"{site}#launcher=slurm") as page:
        wait_for_file(page)
        assert page.locator("#tree .mark").count() == 0
        page.check("input[name=logging][value=csv]")
        page.locator("#tree [data-path='myproj/runtime/tracking.py'] .mark").wait_for(timeout=LOADED)
        assert page.locator("#tree [data-path='apptainer.def'] .mark").count() == 0
        page.select_option("#compare", "defaults")
        assert page.inner_text("#tree [data-path='apptainer.def'] .mark") == "new"
        assert page.url.endswith("&compare=defaults")
        page.select_option("#compare", "off")
        assert page.locator("#tree .mark").count() == 0


def test_a_renamed_package_is_one_line(site: str, browser: "Browser") -> None:
    with opened(browser, f"{site}#file=myproj%2Fmodel.py") as page:
        page.fill("input[name=project_name]", "Wind turbines")
        page.locator("#status", has_text="myproj/ is now wind_turbines/").wait_for(timeout=LOADED)
        assert "wind_turbines/model.py" in page.inner_text("#path")
        assert page.locator("#tree", has_text="gone").count() == 0
        assert page.locator("#tree", has_text="new").count() == 0
        wait_for(page, f"--data 'project_name=Wind turbines' {page.inner_text('#command').split()[-2]} wind_turbines")
        files = unpacked(downloaded(page, "#zip", "wind_turbines.zip"), "wind_turbines")
        assert "wind_turbines/model.py" in files
        assert b"# Wind turbines\n" in files["README.md"][1]


def test_reset_and_the_history_bring_answers_back(site: str, browser: "Browser") -> None:
    with opened(browser, site) as page:
        page.check("input[name=launcher][value=slurm]")
        page.check("input[name=logging][value=wandb]")
        page.click("#reset")
        assert page.inner_text("#command") == page.evaluate("import('./shipped.js').then(({ first }) => first.command)")
        assert page.is_disabled("#reset")
        page.go_back()
        wait_for(page, "--data launcher=slurm --data logging=wandb")
        page.go_back()
        page.locator("#command:not(:has-text('wandb'))").wait_for()
        assert page.is_checked("input[name=logging][value=console]")
        page.go_forward()
        wait_for(page, "logging=wandb")
        wait_for_file(page)


def test_a_file_is_found_copied_and_saved(site: str, browser: "Browser", expected: Preview) -> None:
    texts = {file["path"]: file["text"] for file in expected.shown({})["files"]}
    with opened(browser, site) as page:
        page.fill("#find", "MODEL")
        assert page.locator("#tree [aria-selected]").all_inner_texts() == ["model.py"]
        page.press("#find", "Enter")
        page.locator("#path", has_text="myproj/model.py").wait_for()
        page.click("#copy-file")
        assert clipboard(page) == texts["myproj/model.py"]
        assert downloaded(page, "#save-file", "model.py").read_text() == texts["myproj/model.py"]
        # What is selected has the lines of the file, and no numbers.
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#code .lines'))")
        page.keyboard.press("Control+C")
        assert "\n\n\n" in texts["myproj/model.py"]
        assert clipboard(page) == texts["myproj/model.py"].removesuffix("\n")


def test_markdown_is_rendered_and_runs_nothing(site: str, browser: "Browser") -> None:
    hostile = "%3Cimg src=x onerror='window.harmed=1'%3E"
    with opened(browser, f"{site}#project_name={hostile}&file=README.md") as page:
        page.locator("#code h1", has_text="<img src=x").wait_for(timeout=LOADED)
        assert page.locator("#code table").count() > 1
        page.click("#view")
        page.locator("#code .row", has_text="# <img").wait_for()


# ---- on a phone, and for everybody ----
def test_an_answer_on_a_phone_stays_in_sight(site: str, browser: "Browser") -> None:
    with opened(browser, f"{site}#file=myproj%2Fruntime%2Ftracking.py", **PHONE) as page:
        wait_for_file(page)
        answer = page.locator("input[name=logging][value=wandb]")
        answer.scroll_into_view_if_needed()
        before = answer.bounding_box()
        answer.check()
        page.locator("#code .added", has_text="wandb").first.wait_for()
        assert answer.bounding_box() == before
        for button in ("#copy", "#zip", "#command"):
            box = page.locator(button).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= PHONE["viewport"]["height"]
        page.click("#files")
        page.select_option("#select", label="pyproject.toml (changed)")
        page.locator("#code .added", has_text="wandb").first.wait_for()
        assert page.locator("#select").input_value() == "pyproject.toml"
        assert not page.is_visible("#tree")


@pytest.mark.parametrize(("scheme", "device"), [("light", DESK), ("dark", PHONE)], ids=["desk", "phone"])
def test_the_preview_is_accessible(scheme: str, device: Any, site: str, browser: "Browser", axe: str) -> None:
    with opened(browser, site, color_scheme=scheme, **device) as page:
        page.locator("#code .row").first.wait_for()
        assert violations(page, axe) == []
        page.check("input[name=amp][value=apex]")
        page.locator("#code .added").first.wait_for()
        assert violations(page, axe) == []
        for link, shown in {
            "compare=off&file=RECIPES.md": "#code .markdown",
            "package_name=torch": "#status.bad",
        }.items():
            page.goto(f"{site}#{link}")
            page.locator(shown).wait_for(timeout=LOADED)
            assert violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= device["viewport"]["width"]
    with opened(browser, f"{site}#launcher=slurm&amp=none", color_scheme=scheme, **device) as page:
        assert violations(page, axe) == []  # while Python is loading
        wait_for_file(page)
