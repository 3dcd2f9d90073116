"""Sweeps on SLURM: packs of runs as submitit job arrays that survive kills, limits and restarts."""
