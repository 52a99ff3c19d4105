"""Unit tests of mpishare/files."""
