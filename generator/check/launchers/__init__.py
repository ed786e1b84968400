"""The real launchers: how they are found, started and, for Slurm, given a cluster on this machine."""
