"""Sphinx's settings for the guides: Furo for the pages, MyST for Markdown. Nothing is fetched when a page is viewed."""

import logging
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from website.directives import Choices, Drawing, Excerpt, language_of

REPOSITORY = "https://github.com/org/ddp-template"
SITE = "https://org.github.io/ddp-template/"

project = "ddp-template"
extensions = ["myst_parser", "sphinx_copybutton", "sphinxext.opengraph"]
smartquotes = False  # options begin with two hyphens
copybutton_selector = "div.highlight > pre:not(.still)"
ogp_site_url = SITE
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # the card's font has one weight
ogp_social_cards = {"image_mini": "icon.png", "line_color": "#0b57d0", "site_title": False}
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header", "misc.highlighting_failure"]  # code with Jinja in it has no lexer that takes it
html_theme = "furo"
html_static_path = ["assets"]
html_search_scorer = str(Path(__file__).parent / "scorer.js")
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
html_show_copyright = False
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


def set_language(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Say which language a page has, and give the pages on the loop and the landing page what is theirs."""
    context["language"] = {"en": "en", "zh": "zh-CN"}[language_of(page)]
    if page.startswith("loop"):
        app.add_css_file("loop.css")
        app.add_js_file("loop.js", loading_method="defer")
    if page == "index":
        app.add_css_file("landing.css")
    else:  # the card of the landing page, which the build copies to this place
        context["meta"] = {**(context.get("meta") or {}), "og:image": f"{SITE}card.png"}


def setup(app: Sphinx) -> None:
    """Connect with Sphinx."""
    app.connect("source-read", link_to_repository)
    app.connect("html-page-context", set_language, priority=400)  # before the tags of Open Graph
    app.add_directive("choices", Choices)
    app.add_directive("excerpt", Excerpt)
    app.add_directive("drawing", Drawing)
