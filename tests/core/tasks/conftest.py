"""Ranks are forked here, and projects have little data."""

from tests.small_projects import forking_process, small

__all__ = ["forking_process", "small"]
