"""Unit tests of benchmarks."""
