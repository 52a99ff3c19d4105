"""Runs pytest; goes when all tests are in their folders."""

import sys

import pytest

raise SystemExit(pytest.main(["-q", "--tb=short", "--color=no", *sys.argv[1:]]))
