"""A browser, and the packages of the site."""

from tests.support.browser import axe, browser, packages

__all__ = ["axe", "browser", "packages"]
