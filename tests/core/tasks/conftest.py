"""Projects have little data here."""

from tests.support.forked_runs import small

__all__ = ["small"]
