"""Unit tests of mpishare/transfer."""
