"""A browser."""

from tests.browser import browser

__all__ = ["browser"]
