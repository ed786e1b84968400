"""Ranks are forked here, and projects have little data."""

from tests.support.forked_runs import forking_process, small

__all__ = ["forking_process", "small"]
