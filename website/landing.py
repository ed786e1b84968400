"""The parts of the first pages that the build makes: commands, numbers and the picture."""

import re
import textwrap
from collections.abc import Iterator
from difflib import SequenceMatcher
from html import escape
from pathlib import PurePosixPath

from benchmarks.runner import read
from generator.answers.questions import TEMPLATE
from tools.docs.speed import contenders_of
from website.excerpts import code, excerpt
from website.preview import word
from website.render import Template

RESULTS = TEMPLATE / "benchmarks" / "results"
# The picture: what the last answer changes in a function, when these are given.
GIVEN = {"launcher": "slurm", "logging": "wandb"}
CHANGED, BEFORE = "amp", "none"
FILE, FUNCTION = "train.py", "train_step"


def fill(page: str, template: Template) -> str:
    """Return a page with these parts in it."""
    parts = {"copy": commands_to_copy, "start": commands_after_copy, "proofs": proofs, "picture": picture}
    for name, make in parts.items():
        if mark := re.search(rf"^( *)<!-- {name} -->$", page, re.MULTILINE):
            page = page.replace(mark[0], textwrap.indent(make(template), mark[1]))
    return page


def commands_to_copy(template: Template) -> str:
    """Return the commands that write a project."""
    version, source = template.settings["_min_copier_version"], template.recorded["_src_path"]
    return f'```sh\npip install "copier>={version}"\ncopier copy {source} {template.conf["dst_path"]}\n```'


def commands_after_copy(template: Template) -> str:
    """Return the commands that Copier's message names."""
    context = template.context(template.ask({}).values)
    message = template.text(template.settings["_message_after_copy"], context)
    return "\n".join(["```sh", *re.findall(r"^ {2,}(\S.*)$", message, re.MULTILINE), "```"])


def proofs(template: Template) -> str:
    """Return three numbers, each with what it says and the page that proves it."""
    speed = contenders_of(read(RESULTS / "speed.json"), "small_cnn")["generated"]["ratio"]["median"]
    damaged, kills, saving = most_kills()
    rows = re.findall(
        r"^\| legal combinations of answers \| ([\d,]+) ", (TEMPLATE / "README.md").read_text(), re.MULTILINE
    )
    shown = [
        (f"{speed:.2f} x", "the samples per second of a minimal DDP loop, on two processes of a CPU", "speed"),
        (f"{damaged}", f"damaged checkpoints after {kills} SIGKILLs, {saving} of them during a save", "faults"),
        (rows[0], "combinations of answers, each linted, type-checked, trained, stopped and resumed", "matrix"),
    ]
    cards = (f'<a href="{page}.html"><strong>{number}</strong> {says}</a>\n' for number, says, page in shown)
    return f'<div class="proofs">\n{"".join(cards)}</div>'


def most_kills() -> tuple[int, int, int]:
    """Return the damaged checkpoints of the longest series of kills, its kills, and those during a save."""
    found = []
    for each in read(RESULTS / "faults.json")["measurements"]:
        if case := re.match(r"(\d+) kills, (\d+) of them while saving: damaged checkpoints", each["case"]):
            found.append((int(case[1]), int(case[2]), int(each["value"])))
    kills, saving, damaged = max(found)
    return damaged, kills, saving


def picture(template: Template) -> str:
    """Return a picture of the preview, drawn of a project as the template is now."""
    form = template.ask(GIVEN)
    before, after = (texts_of(template, answers) for answers in ({**GIVEN, CHANGED: BEFORE}, GIVEN))
    questions = "".join(
        f"<dt>{escape(asked.help.partition(' (')[0])}</dt>"
        + "".join(
            f"<dd{' class=chosen' * (choice.value == asked.value)}>{word(choice.value)}</dd>"
            for choice in asked.choices
        )
        for asked in form.asked
        if asked.key in (*GIVEN, CHANGED)
    )
    files = "".join(
        f"<li{' class=open' * (path == FILE)}>{escape(path)}{'<i>●</i>' * (before.get(path) != after[path])}</li>"
        for path in listed(after, form.values["package_name"])
    )
    shown = "".join(marked_lines(before[FILE], after[FILE]))
    link = "preview/index.html#" + "&amp;".join(f"{key}={value}" for key, value in GIVEN.items())
    return (
        f'<figure class="picture">\n<div aria-hidden="true"><dl>{questions}</dl><ul>{files}</ul>\n'
        f'<div class="highlight"><pre class="still">{shown}</pre></div></div>\n'
        f'<figcaption><a href="{link}">Read the project of these answers</a></figcaption></figure>'
    )


def texts_of(template: Template, answers: dict[str, str]) -> dict[str, str]:
    """Return the texts of a project by their paths."""
    files = template.render(template.ask(answers)).items()
    return {path: raw.decode() for path, (_, raw) in files if b"\0" not in raw}


def listed(files: dict[str, str], package: str) -> list[str]:
    """Return the files that a reader looks at first: programs, and what the package has beside runtime/."""
    programs = [PurePosixPath(path) for path in files if path.endswith((".py", ".sh")) and "__" not in path]
    return [str(path) for folder in (".", package) for path in programs if str(path.parent) == folder]


def marked_lines(before: str, after: str) -> Iterator[str]:
    """Yield the lines of the function as HTML: those that are new are marked."""
    old, new = (excerpt(FILE, text, FUNCTION) for text in (before, after))
    html = code(FILE, new).splitlines()
    for tag, _, _, start, end in SequenceMatcher(
        None, old.splitlines(), new.splitlines(), autojunk=False
    ).get_opcodes():
        kind = "" if tag == "equal" else ' class="added"'
        yield from (f"<span{kind}>{line}\n</span>" for line in html[start:end])
