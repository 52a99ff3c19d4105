"""Unit tests of mpishare/arrays."""
