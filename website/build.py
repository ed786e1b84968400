"""Builds the site into a folder that any host serves: the guides by Sphinx, and the preview beside them."""

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from generator.answers.questions import TEMPLATE
from generator.render.git import GitError, run
from generator.render.snapshot import PARTS, snapshot_of_revision
from website import landing
from website.guides import write_guides
from website.preview import Preview
from website.recipes import write_pages
from website.render import Template

HERE = Path(__file__).parent
SOURCE = "gh:org/ddp-template"
ENGINE = ("jinja2", "jinja2-ansible-filters", "markupsafe", "pathspec", "pyyaml")  # each also runs as Python alone
# What the page loads from packages of npm.
SCRIPTS = {
    "pyodide": ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"),
    "@highlightjs/cdn-assets": ("highlight.min.js",),
    "diff": ("dist/diff.min.js",),
    "markdown-it": ("dist/browser/markdown-it.esm.min.mjs",),
}
FETCHED = ("pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json", "engine.tar.gz")  # what the worker waits for
# What Furo's pages lack for those who hear them, or have no mouse.
ACCESSIBLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Site" lang="en">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="Page">',
    '<div class="highlight"><pre>': '<div class="highlight"><pre tabindex="0">',  # may be wider than a phone
}


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("destination", type=Path, help="a new or empty folder, or one that an earlier build wrote")
    parser.add_argument("--report", type=Path, help="report.html of `ddp-template check --html`, to show it, too")
    parser.add_argument("--version", help="preview this version of the template, such as v1.1.0: not the working tree")
    options = parser.parse_args()
    destination: Path = options.destination.resolve()
    mark = destination / ".ddp-template-site"
    if destination.exists() and any(destination.iterdir()) and not mark.exists():
        sys.exit(f"{options.destination} holds something else: give a new or empty folder")
    if options.report and not options.report.is_file():
        sys.exit(f"there is no file {options.report}: ddp-template check --html {options.report} writes it")
    destination.mkdir(parents=True, exist_ok=True)
    mark.touch()
    build_guides(destination, with_report=options.report is not None)
    if options.report:
        shutil.copy(options.report, destination / "report.html")
    with tempfile.TemporaryDirectory() as folder:
        try:
            template = snapshot_of_revision(Path(folder) / "template", options.version) if options.version else TEMPLATE
        except GitError as error:
            sys.exit(str(error))
        build_preview(destination / "preview", template, SOURCE, options.version or version())


def build_guides(destination: Path, *, with_report: bool) -> None:
    """Let Sphinx make the landing page and the guides, with their search."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        shutil.copytree(TEMPLATE / "docs", source)
        shutil.copy(TEMPLATE / "CHANGELOG.md", source / "changelog.md")
        shutil.copytree(HERE / "pages", source, dirs_exist_ok=True)
        shutil.copy(HERE / "icon.png", source)
        shutil.rmtree(source / "example")
        template = Template(TEMPLATE, SOURCE)
        write_pages(template, source)
        write_guides(template, source)
        goals = (TEMPLATE / "docs" / "speed.md").read_text()
        index = (source / "index.md").read_text().replace("<!-- speed -->", speed_table(goals))
        report = '<a href="report.html">The report of the newest check</a> shows each.' if with_report else ""
        (source / "index.md").write_text(landing.fill(index.replace("<!-- report -->", report), template))
        (source / "start.md").write_text(landing.fill((source / "start.md").read_text(), template))
        shutil.rmtree(cards := destination / "_images" / "social_previews", ignore_errors=True)  # of earlier builds
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-d", f"{folder}/doctrees"]
        subprocess.run([*command, "-c", str(HERE), str(source), str(destination)], check=True)
    [card] = cards.glob("summary_index_*.png")
    shutil.copy(card, destination / "card.png")  # of the preview, too
    for page in destination.rglob("*.html"):
        text = page.read_text()
        for furo, accessible in ACCESSIBLE.items():
            text = text.replace(furo, accessible)
        page.write_text(text)


def speed_table(page: str) -> str:
    """Return the rows of docs/speed.md that compare with frameworks as they come."""
    rows = re.findall(r"^\| `(\w+)`: samples/s, times ([^|(]+) \| [^|]* \| ([0-9.]+) \|", page, re.MULTILINE)
    lines = [f"| {contender} | {times} x |" for network, contender, times in rows if network == "small_cnn"]
    return "\n".join(["| beside | samples per second |", "| --- | ---: |", *lines])


def build_preview(destination: Path, template: Path, source: str, commit: str | None) -> None:
    """Write the page, the first project that it shows, and what renders the others in the browser.

    Projects record that the template is of this source and commit.
    """
    destination.mkdir(exist_ok=True)
    for file in (HERE / "static").iterdir():
        shutil.copy(file, destination)
    with tempfile.TemporaryDirectory() as folder:
        packages = unpack_packages(Path(folder), "--omit=dev")
        for package, names in SCRIPTS.items():
            for name in names:
                shutil.copy(packages[package] / name, destination)
    with tarfile.open(destination / "engine.tar.gz", "w:gz") as archive:
        for package in ENGINE:
            for installed in importlib.metadata.files(package) or ():
                if installed.suffix == ".py":
                    archive.add(str(installed.locate()), str(installed))
        for name in ("__init__.py", "render.py", "preview.py"):
            archive.add(HERE / name, f"website/{name}")
        for part in PARTS:
            archive.add(template / part, f"template/{part}", filter=without_bytecode)
    loaded = sum((destination / name).stat().st_size for name in FETCHED)
    (destination / "settings.json").write_text(json.dumps({"source": source, "commit": commit, "bytes": loaded}))
    write_first_views(Preview(Template(template, source, commit)), destination)


def write_first_views(preview: Preview, destination: Path) -> None:
    """Write what the page shows before Python is loaded: the defaults, and what each choice changes in them."""
    steps = preview.steps()
    questions = {step: found.pop("questions") for step, found in steps.items()}
    (destination / "default.json").write_text(json.dumps({**preview.shown({}), "steps": questions}))
    (destination / "steps.json").write_text(json.dumps(steps))


def without_bytecode(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what Python wrote beside its sources."""
    return None if "__pycache__" in entry.name else entry


def version() -> str | None:
    """Return the version of the template as Copier records it, or None outside a repository."""
    try:
        return run(TEMPLATE, "describe", "--tags", "--always")
    except GitError:
        return None


def unpack_packages(folder: Path, *options: str) -> dict[str, Path]:
    """Fetch the packages of npm whose versions and hashes package-lock.json has; return the folder of each."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    if not shutil.which("npm"):
        sys.exit("the site needs npm, to fetch Pyodide and other packages: install Node.js")
    plain = ["--silent", "--no-audit", "--no-fund", "--prefer-offline"]  # the hashes are checked in any case
    subprocess.run(["npm", "ci", "--ignore-scripts", *plain, *options], cwd=folder, check=True)
    modules = folder / "node_modules"
    return {str(file.parent.relative_to(modules)): file.parent for file in modules.glob("**/package.json")}


if __name__ == "__main__":
    main()
