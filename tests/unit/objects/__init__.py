"""Unit tests of mpishare/objects."""
