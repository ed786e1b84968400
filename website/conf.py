"""Sphinx's settings for the guides: Furo for the pages, MyST for Markdown. Nothing is fetched when a page is viewed."""

import re
from typing import Any

from sphinx.application import Sphinx

REPOSITORY = "https://github.com/org/ddp-template"

project = "ddp-template"
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header", "misc.highlighting_failure"]  # code with Jinja in it has no lexer that takes it
html_theme = "furo"
html_favicon = "static/icon.svg"
html_title = "ddp-template"
html_copy_source = False
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "preview.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_show_sphinx = False
html_theme_options: dict[str, Any] = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": [],
}


def link_to_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to files that are no pages lead to the repository."""
    source[0] = re.sub(r"\]\(((?:\.\./)+)([^)]*)\)", lambda link: repository_link(page, *link.groups()), source[0])
    source[0] = source[0].replace("](example/train.py)", f"]({REPOSITORY}/blob/main/docs/example/train.py)")


def repository_link(page: str, up: str, path: str) -> str:
    """Return a link of a page; those that lead out of docs/ lead to the repository."""
    inside = page.count("/") >= up.count("../")
    return f"]({up}{path})" if inside else f"]({REPOSITORY}/blob/main/{path})"


def setup(app: Sphinx) -> None:
    """Connect with Sphinx."""
    app.connect("source-read", link_to_repository)
