"""The pages of a project as pages of the site: what its README and its guides say, for each launcher if it matters."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from website.recipes import write_list
from website.render import Files, Template

# The page of the site that a page of a project becomes.
PAGES = {
    "README.md": "project",
    "PORTING.md": "porting",
    "TROUBLESHOOTING.md": "troubleshooting",
    "UPDATING.md": "updating",
    "RECIPES.md": "recipes",
    "LAUNCHING.md": "launching",
}
PROJECT = """# What a project contains

This is the README of a project with the default answers, here named `{name}`.
"""
LAUNCHING = """# Train on several processes and nodes

How to start, stop and restart a run with each launcher. LAUNCHING.md of your project has the page of your launcher.

"""
OPTIONS = """# Options of train.py

`python train.py --help all` prints them. These are the options of a project with the default answers. Your `options.py`
may add others.

```text
"""


def write_guides(template: Template, folder: Path) -> None:
    """Write the pages of a project, the options of its programs, and the launchers, for Sphinx."""
    form = template.ask({})
    files = template.render(form)
    for name, page in PAGES.items():
        if page not in ("recipes", "launching"):
            (folder / f"{page}.md").write_text(linked(files[name][1].decode(), ""))
    title = PROJECT.format(name=form.values["project_name"])
    readme = (folder / "project.md").read_text()
    (folder / "project.md").write_text(re.sub(r"\A# .*\n", lambda _: title, readme))
    (folder / "options.md").write_text(f"{OPTIONS}{help_of(files)}```\n")
    for launcher in write_list(template, "launcher", folder / "launching", LAUNCHING):
        page = template.render(template.ask({"launcher": launcher}))["LAUNCHING.md"][1].decode()
        titled = re.sub(r"\A# .*\n", f"# Launch with {launcher}\n", page)
        (folder / "launching" / f"{launcher}.md").write_text(linked(titled, "../"))


def linked(text: str, up: str) -> str:
    """Let each mention of a page that the site has, outside code, be a link."""
    mention = rf"(?<![\w/`\[])({'|'.join(map(re.escape, PAGES))})(?![\w`])"
    parts = re.split(r"(^```.*?^```$|`[^`\n]+`|^# .*$)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(mention, lambda name: f"[{name[1]}]({up}{PAGES[name[1]]}.md)", part) for part in parts[::2]]
    return "".join(parts)


def help_of(files: Files) -> str:
    """Return what `train.py --help all` of a project prints, which needs no torch."""
    with tempfile.TemporaryDirectory() as folder:
        for path, (_, content) in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        command = [sys.executable, "train.py", "--help", "all"]
        environment = {**os.environ, "COLUMNS": "84", "NO_COLOR": "1"}
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
