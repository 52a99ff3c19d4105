"""Unit tests of mpishare/tasks."""
