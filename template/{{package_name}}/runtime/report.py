"""A page to look at, of one run or several: how they are, curves, options. It needs no network and no other file.

It is made from metrics.jsonl, config.json and result.json alone, so it also works for a running or killed run. To
compare runs, python -m with the name of this module and the folders of the runs writes the page into the current
folder. With --serve, it shows the page to browsers on this machine instead, and follows the runs.
"""

import argparse
import base64
import fcntl
import hashlib
import json
import math
import platform
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from string import Template
from threading import Lock
from typing import Any

from .exits import UserError, finish
from .records import FILE, LOG, RESULT, NewLines, Record, Thinned, thinned
from .storage import replace_file

PAGE = "report.html"
LIVE = "report.js"  # beside the page of a run that trains: its data alone, which an open page loads again and again
SHOWN = "shown"  # folder of a run: what show() of task.py returned last
NUMBERS = 50_000  # of records with the same names, over all runs of a page; of more, only some records are drawn
OFTEN = 2.0  # seconds between two writes of the page, at least
SHARE = 500  # a write comes after this multiple of the time that the last one took
SUFFIXES = (".png", ".svg", ".txt")  # of what show() of task.py has shown
HERE = Path(__file__).parent  # of the files that a page is made of


class History:
    """The records of a run that are drawn, read as they come."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.lines = NewLines(run_dir / FILE)
        self.recorded = Thinned()

    def records(self) -> list[Record]:
        """Read what is new, and return the records that are kept."""
        if not self.lines.path.exists():  # a run of version 1
            return thinned(self.run_dir).records()
        for line in self.lines:
            if self.lines.place == len(line):  # the first one, as after a cut
                self.recorded = Thinned()
            self.recorded.add(line)
        return self.recorded.records()


class LivePage:
    """The page of a run that is training, whose writing takes a five-hundredth of the time, or less."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.every = OFTEN
        self.due = 0.0

    def is_due(self) -> bool:
        """Return whether the page is old."""
        return time.monotonic() >= self.due

    def write(self, recorded: Thinned, result: dict[str, Any]) -> None:
        """Write the page with what result.json would hold now. Raises UserError if that is impossible."""
        began = time.monotonic()
        data = as_json([describe(self.run_dir, recorded.records, NUMBERS, result)], self.every)
        replace_file(self.run_dir / PAGE, page_of(data).encode())
        replace_file(self.run_dir / LIVE, f"update({data});\n".encode())
        now = time.monotonic()
        self.every = max(OFTEN, SHARE * (now - began))
        self.due = now + self.every


def describe(
    run_dir: Path, read: Callable[[], list[Record]], numbers: int, result: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return what a page says of a run; its result is read, unless it is given. Raises UserError if it is no run."""
    try:
        records = read()
        options = json.loads((run_dir / "config.json").read_text(), parse_constant=str)  # inf and NaN are no JSON
        if result is None:
            result = json.loads((run_dir / RESULT).read_text()) if (run_dir / RESULT).exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{run_dir} is no run with {FILE} and config.json: name folders such as runs/*") from error
    kinds: dict[tuple[str, ...], list[Record]] = {}
    events = [record for record in records if "event" in record]
    for record in records:
        if "event" not in record:
            kinds.setdefault(tuple(record), []).append(record)
    return {
        "name": run_dir.resolve().name,
        "options": options,
        "result": result,
        "events": events,
        "abandoned": not result and is_abandoned(run_dir, events),
        "series": [columns(each, numbers) for each in kinds.values()],
        "shown": shown_in(run_dir / SHOWN),
    }


def columns(records: Sequence[Record], numbers: int) -> dict[str, list[float | None]]:
    """Return the values of records by their names, in the order of steps; of too many records, some and the last."""
    every = max(1, -(-len(records) * len(records[0]) // numbers))
    some = sorted([*records[:-1:every], records[-1]], key=lambda record: record["step"])  # clocks of nodes differ
    return {name: [rounded(record[name]) for record in some] for name in records[0]}


def rounded(value: float) -> float | None:
    """Return six digits of a number, and all of a time or a count; None if it is not finite."""
    if isinstance(value, int) or abs(value) > 1e9 or value.is_integer():
        return value if math.isfinite(value) else None
    return float(f"{value:.6g}") if value == value else None


def is_abandoned(run_dir: Path, events: Sequence[Record]) -> bool:
    """Return whether a run was killed on this machine: it has not said how it ended, and its lock is free."""
    if not events or events[-1].get("host") != platform.node():
        return False
    with suppress(OSError), open(run_dir / "in-use", "rb") as file:  # a run has the lock, or there are no locks
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


def shown_in(folder: Path) -> list[dict[str, str]]:
    """Return what was shown last: the name, the kind and the content of each file."""
    found = []
    for file in sorted(folder.glob("[!.]*.*")):
        if file.suffix in SUFFIXES and file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            text = base64.b64encode(content).decode() if file.suffix == ".png" else content.decode(errors="replace")
            found.append({"name": file.stem, "kind": file.suffix[1:], "content": text})
    return found


def as_json(runs: Sequence[dict[str, Any]], every: float) -> str:
    """Return the data of a page that is renewed every so many seconds (0: never), as JSON and as JavaScript."""
    return json.dumps({"written": time.time(), "every": every, "runs": runs}, separators=(",", ":"))


def page_of(data: str) -> str:
    """Return the page with its data. A browser runs the page's own script alone, known by its digest."""
    page, script, sha256 = parts()
    return page.substitute(sha256=sha256, script=script, data=data.replace("<", "\\u003c"))


@cache
def parts() -> tuple[Template, str, str]:
    """Return the page, its script, and the digest of the script."""
    script = "".join((HERE / name).read_text("utf-8") for name in ("uplot.min.js", "report_page.js"))
    sha256 = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template((HERE / "report_page.html").read_text("utf-8")), script, sha256


def data_of(histories: Sequence[History], every: float = 0.0) -> str:
    """Return the data of some runs. Raises UserError if a folder is no run."""
    numbers = NUMBERS // len(histories)
    return as_json([describe(each.run_dir, each.records, numbers) for each in histories], every)


def write_page(run_dirs: Sequence[Path], page: Path) -> None:
    """Write the page of some runs. Raises UserError if a folder is no run, or if the disk does not take the page."""
    replace_file(page, page_of(data_of([History(each) for each in run_dirs])).encode())


def serve(run_dirs: Sequence[Path], port: int) -> None:
    """Show the page to browsers on this machine that know its address, until Ctrl-C. Raises UserError as write_page."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # here: a run does without them

    histories, one_at_a_time = [History(each) for each in run_dirs], Lock()
    data_of(histories)  # to refuse what is no run
    place = f"/{secrets.token_urlsafe(12)}/"  # other users of this machine do not know it

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0]
            there = [each for each in histories if (each.run_dir / "config.json").exists()]  # others are gone since
            if name not in (place, place + LIVE) or not there:
                return self.send_error(404)
            with one_at_a_time:
                data = data_of(there, OFTEN)
            kind, text = ("html", page_of(data)) if name == place else ("javascript", f"update({data});\n")
            self.send_response(200)
            for header in (f"Content-Type: text/{kind}; charset=utf-8", "Cache-Control: no-store"):
                self.send_header(*header.split(": "))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing of each request."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server, suppress(KeyboardInterrupt):
        print(f"http://127.0.0.1:{server.server_port}{place}", flush=True)
        server.serve_forever()


def main() -> None:
    """Write the page or serve it, as the command line says. Raises UserError as write_page does."""
    parser = argparse.ArgumentParser(description="Put runs on one page, report.html of this folder.")
    parser.add_argument("runs", nargs="*", type=Path, default=[Path()], help="folders such as runs/* (this folder)")
    parser.add_argument("--serve", action="store_true", help="serve the page on 127.0.0.1 instead, and follow the runs")
    parser.add_argument("--port", type=int, default=0, help="where to serve it (0: any free port)")
    asked = parser.parse_args()
    if not 0 <= asked.port <= 65535:
        raise UserError(f"--port is {asked.port}: ports end at 65535")
    begun = [each for each in asked.runs if (each / FILE).exists() or (each / LOG).exists()]  # runs/* may have others
    serve(begun or asked.runs, asked.port) if asked.serve else write_page(begun or asked.runs, Path(PAGE))


if __name__ == "__main__":
    sys.exit(finish(main))
