"""MPI tests of mpishare/tasks."""
