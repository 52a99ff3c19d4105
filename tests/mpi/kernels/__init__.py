"""MPI tests of mpishare/kernels."""
