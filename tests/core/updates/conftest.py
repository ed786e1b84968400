"""Histories of the template."""

from tests.support.versions import history, made_up, old_project, ready, scratch, workers

__all__ = ["history", "made_up", "old_project", "ready", "scratch", "workers"]
