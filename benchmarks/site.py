"""Measures what a reader of the preview waits for, in a real browser: python -m benchmarks.site

Each round opens the page in a browser that has cached nothing, and waits for the first line of code; then it lets
Python load, and changes an answer forth and back. Each time is also given as a ratio to a fixed piece of work of the
same browser in the same round. The page comes from this machine: there is no network in these numbers. The results are
in benchmarks/results/site.json, from which `ddp-template docs` makes a table in docs/speed.md.
"""

import functools
import http.server
import json
import shutil
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from generator.answers.questions import TEMPLATE
from tools.docs.starting import FIXED_WORK
from website.build import build_preview

from .failures import CommandError, failures_told
from .machines import machine

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RESULTS = TEMPLATE / "benchmarks" / "results" / "site.json"
BROWSERS = ("chromium", "google-chrome")
LOADED = 600_000  # milliseconds until Python is there
FIRST_VIEW = "new MutationObserver(() => { if (!window.viewed && document.querySelector('#code .row')) window.viewed = "
FIRST_VIEW += "performance.now(); }).observe(document, { childList: true, subtree: true });"
# A change of the answer, until the file that it changes is drawn; the worker is loaded by then.
CHANGE = """value => new Promise(resolve => {
  const began = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
  }).observe(document.getElementById("code"), { childList: true });
  document.querySelector(`input[name=amp][value=${value}]`).click();
})"""
LOOP = """() => {
  const began = performance.now();
  let number = 1;
  for (let i = 0; i < 3e7; i++) number = (Math.imul(number, 1103515245) + 12345) | 0;
  return performance.now() - began + (number === 0.5);
}"""


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder at the address that this yields."""
    handler = functools.partial(Server, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def preview() -> Iterator[str]:
    """Build the preview and serve it at the address that this yields."""
    with tempfile.TemporaryDirectory() as folder:
        build_preview(Path(folder) / "preview", TEMPLATE, "gh:org/ddp-template", None)
        with served(Path(folder)) as address:
            yield f"{address}/preview/index.html"


def play_round(browser: "Browser", address: str) -> dict[str, float]:
    """Return the milliseconds of one round."""
    page = browser.new_page()  # with a cache of its own
    page.set_default_timeout(LOADED)
    page.add_init_script(FIRST_VIEW)
    page.goto(address)
    page.wait_for_function("window.viewed")
    taken = {"first view": page.evaluate("window.viewed"), FIXED_WORK: page.evaluate(LOOP)}
    page.check("input[name=sync_bn][value=true]")
    page.locator("#command", has_text="sync_bn").wait_for()
    taken["an answer changes"] = statistics.median(page.evaluate(CHANGE, value) for value in ("torch", "none") * 3)
    page.close()
    return taken


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often the page is opened.")] = 9,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure all rounds."""
    from playwright.sync_api import sync_playwright

    with failures_told(), preview() as address, sync_playwright() as playwright:
        if not (found := next(filter(None, map(shutil.which, BROWSERS)), None)):
            raise CommandError("there is no Chromium here: tests/clusters/install.sh installs it")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])  # root has no sandbox
        played = [play_round(browser, address) for _ in range(rounds)]
        about = {**machine(), "browser": f"Chromium {browser.version}"}
    milliseconds = {what: [round(each[what], 1) for each in played] for what in played[0]}
    results = {"date": date.today().isoformat(), "machine": about, "milliseconds": milliseconds}
    out.write_text(json.dumps(results, indent=1) + "\n")
    typer.echo(json.dumps({what: statistics.median(taken) for what, taken in milliseconds.items()}, indent=1))


if __name__ == "__main__":
    typer.run(main)
