"""Unit tests of mpishare/kernels."""
