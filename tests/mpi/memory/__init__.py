"""MPI tests of mpishare/memory."""
