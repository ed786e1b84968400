"""A page and its Chinese translation have the same structure, the same code, and the same links."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from generator.answers.questions import TEMPLATE

PAGES = [Path("README.md"), Path("website/pages/loop.md")]
MARKDOWN = MarkdownIt("commonmark").enable("table")
CHINESE = re.compile("[\u4e00-\u9fff]")


def translation(page: Path) -> Path:
    """The page in Chinese."""
    return page.with_suffix(".zh.md")


def shape(text: str) -> list[str]:
    """What is the same in all languages, in order: the kind of each block, its code, and where its links lead."""
    return [part for token in MARKDOWN.parse(text) for part in parts(token)]


def parts(token: Token) -> Iterator[str]:
    """The same of a token."""
    if token.type == "fence" and token.info.startswith("{drawing}"):
        yield token.info
        yield from shape(token.content)
    elif token.type == "fence" and token.info == "text":  # a list of files, each with what it is
        yield "\n".join(
            re.split("  +", line.rstrip())[bool(line.startswith(" "))] for line in token.content.splitlines()
        )
    elif token.type in ("fence", "html_block", "code_block"):
        yield f"{token.info}\n{token.content}"
    elif token.type == "inline":
        yield from sorted(part for child in token.children or () for part in inline_parts(child))
    else:
        yield f"{token.type} {token.tag}"


def inline_parts(token: Token) -> Iterator[str]:
    """Code, links and images within a text; their order depends on the language."""
    if token.type in ("code_inline", "html_inline"):
        yield token.content
    elif token.type in ("link_open", "image", "strong_open", "em_open"):
        yield f"{token.tag} {token.attrGet('href') or token.attrGet('src')}".replace(".zh.", ".")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_translation_has_the_same_structure_and_code(page: Path) -> None:
    english, chinese = (shape((TEMPLATE / each).read_text()) for each in (page, translation(page)))
    assert english == chinese


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_each_text_is_translated(page: Path) -> None:
    """Each paragraph, heading, caption and cell of a table that is more than code and names."""
    tokens = MARKDOWN.parse((TEMPLATE / translation(page)).read_text())
    texts = [token.content for token in tokens if token.type == "inline"]
    texts += [token.content for token in tokens if token.type == "fence" and token.info.startswith("{drawing}")]
    left = [text for text in texts if not CHINESE.search(text) and re.search("[a-z]+ [a-z]+ [a-z]+", text)]
    assert left == []


@pytest.mark.parametrize("page", PAGES, ids=str)
@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        (r"^## .*\n", "### Deeper\n"),
        (r"^- .*\n", ""),
        (r"\]\(docs/[a-z]+\.md\)|\]\(exact\.md\)", "](docs/other.md)"),
        (r"^scripts/try\.sh\n|train\.py:train_step", "other"),
        (r"^\| `\w+` .*\n|^```\{drawing\} sampler\n", ""),
        (r"`DEST`|`--bucket-mib`|`ddp-template`", "`--other`"),
        (r"\.\n\n(?=[A-Z])", ". "),
    ],
)
def test_a_change_of_one_language_is_found(page: Path, pattern: str, other: str) -> None:
    text = (TEMPLATE / page).read_text()
    changed, count = re.subn(pattern, other, text, count=1, flags=re.MULTILINE)
    assert count == 1
    assert shape(changed) != shape((TEMPLATE / translation(page)).read_text())
