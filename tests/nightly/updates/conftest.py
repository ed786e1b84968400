"""Histories of the template."""

from tests.histories import history, made_up, old_project, ready, scratch, workers

__all__ = ["history", "made_up", "old_project", "ready", "scratch", "workers"]
