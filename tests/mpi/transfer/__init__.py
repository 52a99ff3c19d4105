"""MPI tests of mpishare/transfer."""
