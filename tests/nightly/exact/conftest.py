"""Projects have little data here."""

from tests.support.forked_runs import batch_norm_project, orders, plain_project, small

__all__ = ["batch_norm_project", "orders", "plain_project", "small"]
