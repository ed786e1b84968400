"""Ranks are forked here, and projects have little data."""

from tests.support.forked_runs import batch_norm_project, forking_process, orders, plain_project, sharded_project, small

__all__ = ["batch_norm_project", "forking_process", "orders", "plain_project", "sharded_project", "small"]
