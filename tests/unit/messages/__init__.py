"""Unit tests of mpishare/messages."""
