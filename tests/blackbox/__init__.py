"""Tests that run whole programs and look at them from outside."""
