"""Unit tests of mpishare/checkpoints."""
