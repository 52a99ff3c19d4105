"""MPI tests of mpishare/checkpoints."""
