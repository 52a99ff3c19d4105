"""Unit tests of mpishare/comm."""
