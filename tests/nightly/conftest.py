"""A browser."""

from tests.support.browser import browser

__all__ = ["browser"]
