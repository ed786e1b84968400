"""The network of the workload."""

from torch import nn

from benchmarks.contenders.workloads import chosen_workload


def build_model(config: object) -> nn.Module:
    """The network to train, freshly initialised from torch's global RNG."""
    return chosen_workload().build_model()
