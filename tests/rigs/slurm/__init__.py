"""A real Slurm on one machine, for tests."""
