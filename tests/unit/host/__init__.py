"""Unit tests of mpishare/host."""
