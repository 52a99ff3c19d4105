"""A cluster on one machine: hosts as namespaces, joined by a bridge, with Open MPI's daemons and a real Slurm."""
