"""Tests of objects that are shared."""
