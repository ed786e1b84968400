"""A real browser, the pages that it opens, and what axe finds on them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CONTRAST = """element => {
  const light = colour => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(value => value / 255)
      .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  const pair = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    found = next(filter(None, map(shutil.which, ["chromium", "google-chrome"])), None)
    if not found:
        pytest.skip("no Chromium here: tests/clusters/install.sh installs it")
    from playwright.sync_api import sync_playwright  # here, since tests for GPUs do without it

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])  # root has no sandbox


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The packages of npm that the site ships, and those that its tests use."""
    if not shutil.which("npm"):
        pytest.skip("no npm here: install Node.js")
    from website.build import unpack_packages  # here, since tests for GPUs have no Sphinx

    return unpack_packages(tmp_path_factory.mktemp("npm"))


@pytest.fixture(scope="session")
def axe(packages: dict[str, Path]) -> str:
    return (packages["axe-core"] / "axe.min.js").read_text()


def violations(page: "Page", axe: str) -> Any:
    page.evaluate(axe)
    script = "axe.run().then(found => found.violations.map(each => [each.id, each.nodes.map(node => node.html)]))"
    return page.evaluate(script)


def served_by(address: str) -> tuple[str, ...]:
    """Return how addresses begin that a page of this server may ask for."""
    return ("/".join(address.split("/")[:3]), "data:", "blob:")


@contextmanager
def opened(browser: "Browser", address: str, own: tuple[str, ...], **options: Any) -> Iterator["Page"]:
    """Open a page. Fails where a script does, text becomes one, the console says anything, or others are asked."""
    page = browser.new_page(**options)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("requestfailed", lambda request: problems.append(f"{request.url} failed"))
    page.on("response", lambda response: problems.extend([f"{response.url} is not there"] * (response.status >= 400)))
    page.on("request", lambda request: problems.extend([request.url] * (not request.url.startswith(own))))
    page.goto(address)
    yield page
    harmed = page.evaluate("window.harmed")
    page.close()
    assert (problems, harmed) == ([], None)
