"""The order of the samples, of a rendered project."""

from tests.small_projects import orders

__all__ = ["orders"]
