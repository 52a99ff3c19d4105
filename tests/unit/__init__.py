"""Tests that need no mpiexec."""
