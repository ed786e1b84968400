"""The data of the workload."""

from benchmarks.contenders.workloads import Batches, chosen_workload


def load_data(config: object = None) -> tuple[Batches, Batches]:
    """Return the training set and the validation set."""
    return chosen_workload().load_data()
