"""Tests that every rank of a job runs together."""
