"""What each launcher tells the ranks that it starts: the variables and arguments by which a rank finds its place."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """What one process is told beside the program's own options."""

    env: dict[str, str]
    arguments: list[str] = field(default_factory=list)


def torchrun(rank: int, world_size: int, port: int) -> Place:
    """The variables of torch.distributed.run on one machine; rank 0 holds the store."""
    return Place(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default",
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "GROUP_WORLD_SIZE": "1",
            "ROLE_WORLD_SIZE": str(world_size),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": str(port),
            **address(port),
        }
    )


def launch(rank: int, world_size: int, port: int) -> Place:
    """The variables of torchrun, and the rank's own --local-rank before all other options."""
    return Place(torchrun(rank, world_size, port).env, [f"--local-rank={rank}"])


def slurm(rank: int, world_size: int, port: int) -> Place:
    """The variables of srun for a task of a step on one node; the job says where rank 0 is, since no Slurm is asked."""
    return Place(
        {
            "SLURM_JOB_ID": str(port),
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_NODEID": "0",
            "SLURM_NTASKS": str(world_size),
            "SLURM_STEP_NUM_TASKS": str(world_size),
            "SLURM_STEP_TASKS_PER_NODE": str(world_size),
            "SLURM_STEP_NODELIST": "localhost",
            **address(port),
        }
    )


def mpirun(rank: int, world_size: int, port: int) -> Place:
    """The variables of Open MPI's mpirun; the address is the job's, since all ranks here have one parent."""
    return Place(
        {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(world_size),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(world_size),
            **address(port),
        }
    )


def address(port: int) -> dict[str, str]:
    """Where rank 0 waits for the others."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


# A launcher that is not here is taken for one that sets what torchrun sets, which most do.
CONTRACTS: dict[str, Callable[[int, int, int], Place]] = {"launch": launch, "slurm": slurm, "mpirun": mpirun}

# The program itself starts the ranks; it is told how many.
STARTS_ITS_RANKS = {"spawn": "--nproc"}


def places(launcher: str, world_size: int, port: int) -> list[Place]:
    """What each process that the launcher starts is told: one for each rank, or one for a program that starts them."""
    if launcher in STARTS_ITS_RANKS:
        return [Place({}, [STARTS_ITS_RANKS[launcher], str(world_size)])]
    return [CONTRACTS.get(launcher, torchrun)(rank, world_size, port) for rank in range(world_size)]
