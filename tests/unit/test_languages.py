"""A page and its Chinese translation have the same structure, the same code, and the same links."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from generator.answers.questions import TEMPLATE

MARKDOWN = MarkdownIt("commonmark").enable("table")
CHINESE = re.compile("[\u4e00-\u9fff]")


def shape(text: str) -> list[str]:
    """What is the same in all languages, in order: the kind of each block, its code, and where its links lead."""
    return [part for token in MARKDOWN.parse(text) for part in parts(token)]


def parts(token: Token) -> list[str]:
    if token.type == "fence" and token.info.startswith("{drawing}"):
        return [token.info, *shape(token.content)]
    if token.type == "fence" and token.info == "text":  # a list of files, each with what it is
        lines = token.content.splitlines()
        return [re.split("  +", line.rstrip())[bool(line.startswith(" "))] for line in lines]
    if token.type in ("fence", "html_block", "code_block", "code_inline", "html_inline"):
        return [token.info, token.content]
    if token.type in ("link_open", "image", "strong_open", "em_open"):
        return [f"{token.tag} {token.attrGet('href') or token.attrGet('src')}".replace(".zh.", ".")]
    if token.type == "inline":  # the order of its parts depends on the language
        return sorted(part for child in token.children or () for part in parts(child))
    return [token.tag] if token.block else []


@pytest.mark.parametrize("page", [Path("README.md"), Path("website/pages/loop.md")], ids=str)
def test_a_translation_has_the_same_structure_and_code_and_no_english_text(page: Path) -> None:
    translated = (TEMPLATE / page).with_suffix(".zh.md").read_text()
    assert shape((TEMPLATE / page).read_text()) == shape(translated)
    tokens = MARKDOWN.parse(translated)
    drawings = [token for token in tokens if token.type == "fence" and token.info.startswith("{drawing}")]
    texts = [token.content for token in [*(each for each in tokens if each.type == "inline"), *drawings]]
    # A text that is more than code and names has three words in a row.
    assert [text for text in texts if not CHINESE.search(text) and re.search("[a-z]+ [a-z]+ [a-z]+", text)] == []
