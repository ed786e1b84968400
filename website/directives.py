"""What the page on the loop is made of beside its text: code that the reader can switch, and drawings."""

import functools
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from generator.answers.questions import TEMPLATE
from website.excerpts import Variants
from website.render import Template

HERE = Path(__file__).parent
WORDS = {
    "en": {
        "launcher": "Launcher",
        "amp": "Precision",
        "changed": "Changed",
        "same": "All code on this page is the same.",
        "absent": "With these answers, there is no such part.",
    },
    "zh": {
        "launcher": "启动器",
        "amp": "精度",
        "changed": "有变化",
        "same": "本页的代码没有变化。",
        "absent": "在这种选择下没有这一部分。",
    },
}


@functools.cache
def variants() -> Variants:
    """Return the code of the template as it is, rendered once for all pages."""
    return Variants(Template(TEMPLATE, "gh:org/ddp-template"))


def language_of(page: str) -> str:
    """Return the language of a page, by its name: loop, loop.zh."""
    return page.partition(".")[2] or "en"


class Choices(SphinxDirective):
    """The form in which the reader chooses; a script shows it."""

    def run(self) -> list[nodes.Node]:
        """Return the form."""
        words = WORDS[language_of(self.env.docname)]
        fields = []
        for asked in variants().asked:
            options = "".join(
                f'<option value="{escape(choice.value)}"{" selected" * (choice.value == asked.value)}>'
                f"{escape(choice.label)}</option>"
                for choice in asked.choices
            )
            fields.append(f'<label>{words[asked.key]} <select name="{asked.key}" lang="en">{options}</select></label>')
        said = " ".join(f'data-{name}="{words[name]}"' for name in ("changed", "same", "absent"))
        form = f'<form class="choices" autocomplete="off" hidden {said}>{"".join(fields)}<p role="status"></p></form>'
        return [nodes.raw("", form, format="html")]


class Excerpt(SphinxDirective):
    """A part of the rendered code: FILE:NAME, and what takes its place where a project does not have it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the figure."""
        try:
            return [nodes.raw("", variants().html(self.arguments[0]), format="html")]
        except LookupError as problem:
            raise self.error(str(problem)) from problem


class Drawing(SphinxDirective):
    """A drawing, inline so that it has the colours of the page; the caption, which is the content, names it."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the figure."""
        name = self.arguments[0]
        drawing = (HERE / "drawings" / f"{name}.svg").read_text()
        labelled = drawing.replace("<svg ", f'<svg aria-labelledby="drawing-{name}" ', 1)
        caption = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, caption)
        before = f'<figure class="drawing">{labelled}<figcaption id="drawing-{name}">'
        return [nodes.raw("", before, format="html"), *caption, nodes.raw("", "</figcaption></figure>", format="html")]
