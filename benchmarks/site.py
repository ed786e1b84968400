"""Measures what a reader of the preview waits for, in a real browser.

Each round opens the page in a browser that has cached nothing. All times but the first two begin at the click of the
reader, whatever is loaded then: a first answer, a second one before Python is loaded, and others once it is. Each time
is compared with a fixed piece of work of the same browser in the same round. The page comes from this machine: there is
no network in these numbers.
"""

import functools
import http.server
import json
import re
import shutil
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generator.answers.questions import TEMPLATE
from tools.docs.starting import FIXED_WORK
from website.build import build_preview

from . import runner
from .runner import CommandError, Record, in_turn

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSERS = ("chromium", "google-chrome")
LOADED = 600_000  # milliseconds until Python is there
LINK = "#launcher=slurm&logging=wandb"
# When a part of the page first has what it should: the code of a file, or the command of a link.
WATCH = """([selector, text]) => new MutationObserver(() => {
  if (!window.viewed && document.querySelector(selector)?.textContent.includes(text)) window.viewed = performance.now();
}).observe(document, { childList: true, subtree: true, characterData: true })"""
# From the click on an answer until the file that it changes is drawn.
CHANGE = """([key, value]) => new Promise(resolve => {
  const began = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
  }).observe(document.getElementById("code"), { childList: true });
  document.querySelector(`input[name=${key}][value=${value}]`).click();
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


@dataclass
class Benchmark(runner.Benchmark):
    """The milliseconds of what a reader waits for."""

    rounds: int = 9

    def machine(self) -> Record:
        """Return the machine, and the browser."""
        printed = runner.run([chromium(), "--version"], TEMPLATE)
        return runner.machine() | {"browser": f"Chromium {re.findall(r'[0-9]+[.][0-9.]+', printed)[0]}"}

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Open the page once in each round."""
        from playwright.sync_api import sync_playwright

        build_preview(folder / "preview", TEMPLATE, "gh:org/ddp-template", None)
        with served(folder) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])  # root has none
            page = partial(play_round, browser, f"{address}/preview/index.html")
            *_, found = in_turn({"a page": page}, self.rounds)
        yield [{"what": what, "milliseconds": numbers} for what, numbers in found["a page"].items()]


def chromium() -> str:
    """Return the program. Raises CommandError if there is none."""
    if not (found := next(filter(None, map(shutil.which, BROWSERS)), None)):
        raise CommandError("there is no Chromium here: tests/clusters/install.sh installs it")
    return found


def play_round(browser: "Browser", address: str) -> Record:
    """Return the milliseconds of one round."""
    page = opened(browser, f"{address}{LINK}", "#command", "--data launcher=slurm --data logging=wandb")
    taken = {"the command of a link": page.evaluate("window.viewed")}
    page.close()
    page = opened(browser, address, "#code .row", "")
    taken["first view"] = page.evaluate("window.viewed")
    taken["a first answer"] = page.evaluate(CHANGE, ["launcher", "slurm"])
    taken["a second answer, which waits for Python"] = page.evaluate(CHANGE, ["amp", "none"])
    taken["an answer changes"] = statistics.median(
        page.evaluate(CHANGE, ["amp", value]) for value in ("apex", "none") * 3
    )
    taken[FIXED_WORK] = page.evaluate(LOOP)
    page.close()
    return {what: round(milliseconds, 1) for what, milliseconds in taken.items()}


def opened(browser: "Browser", address: str, selector: str, text: str) -> "Page":
    """Open a page with a cache of its own, once a part of it has a text; window.viewed is when that was."""
    page = browser.new_page()
    page.set_default_timeout(LOADED)
    page.add_init_script(f"({WATCH})({json.dumps([selector, text])})")
    page.goto(address)
    page.wait_for_function("window.viewed")
    return page
