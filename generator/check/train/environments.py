"""The variables and arguments with which each launcher starts its ranks."""

from dataclasses import dataclass, field

# Rank 0 holds the store on this machine.
ADDRESS = "MASTER_ADDR=127.0.0.1 MASTER_PORT={port} "
# Other launchers count as ones that set the variables of torchrun, as most do.
TORCHRUN = ADDRESS + (
    "RANK={rank} LOCAL_RANK={rank} GROUP_RANK=0 ROLE_RANK={rank} ROLE_NAME=default WORLD_SIZE={size} "
    "LOCAL_WORLD_SIZE={size} GROUP_WORLD_SIZE=1 ROLE_WORLD_SIZE={size} TORCHELASTIC_RESTART_COUNT=0 "
    "TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RUN_ID={port}"
)
VARIABLES = {
    # A task of srun on one node. The job's variables have the address, since no Slurm runs.
    "slurm": ADDRESS + "SLURM_JOB_ID={port} SLURM_STEP_ID=0 SLURM_PROCID={rank} SLURM_LOCALID={rank} SLURM_NODEID=0 "
    "SLURM_NTASKS={size} SLURM_STEP_NUM_TASKS={size} SLURM_STEP_TASKS_PER_NODE={size} SLURM_STEP_NODELIST=localhost",
    # Open MPI. The address is the job's, since all ranks here have one parent.
    "mpirun": ADDRESS + "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_LOCAL_RANK={rank} OMPI_COMM_WORLD_SIZE={size} "
    "OMPI_COMM_WORLD_LOCAL_SIZE={size}",
}
# Before all other options.
ARGUMENTS = {"launch": ["--local-rank={rank}"]}
# The program itself starts the ranks, and needs their number.
STARTS_ITS_RANKS = {"spawn": "--nproc"}


@dataclass(frozen=True)
class Place:
    """Variables and arguments of one process, in addition to the program's options."""

    env: dict[str, str]
    arguments: list[str] = field(default_factory=list)


def places(launcher: str, world_size: int, port: int) -> list[Place]:
    """Return the Place of each process that the launcher starts: one for each rank, or one that starts all ranks."""
    if launcher in STARTS_ITS_RANKS:
        return [Place({}, [STARTS_ITS_RANKS[launcher], str(world_size)])]
    told = []
    for rank in range(world_size):
        variables = VARIABLES.get(launcher, TORCHRUN).format(rank=rank, size=world_size, port=port)
        arguments = [argument.format(rank=rank) for argument in ARGUMENTS.get(launcher, [])]
        told.append(Place(dict(pair.split("=") for pair in variables.split()), arguments))
    return told
