"""Unit tests of mpishare/memory."""
