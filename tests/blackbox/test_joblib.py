"""The backend of joblib: joblib's own tests, what scikit-learn computes, and how often a node holds an array."""

import re

import pytest

from tests.blackbox.launch import PROGRAMS, run_ranks

PROGRAM = ["-m", f"{PROGRAMS}.joblib_backend"]

OF_PROCESSES = """
    multiprocessing loky back_compat interactively unpicklable initializer memmap
    error_capture timeout_fail abort_backend fastest_first
"""
"""Of joblib's tests, those that start processes, end those of the backend, or look for memory-mapped files."""


@pytest.mark.parametrize(("size", "nodes"), [(2, "block:1"), (4, "block:2")])
def test_joblibs_own_tests(size, nodes, tmp_path):
    chosen = ["-k", f"mpishare and not ({' or '.join(OF_PROCESSES.split())})"]
    ended = run_ranks(size, [*PROGRAM, str(tmp_path), *chosen], {"MPISHARE_NODES": nodes})
    assert re.search(r"^8\d passed, \d+ deselected", ended.stdout, re.MULTILINE), ended.stdout


def test_a_node_holds_an_array_once_and_results_are_the_same():
    ended = run_ranks(4, PROGRAM, {"MPISHARE_RECYCLE": "0"})
    registered, views, own, after, forest, forest_of_own = map(float, ended.stdout.split())
    assert max(registered, views, after, forest) < 0.1  # of a copy, on top of the one that is there before
    assert 0.9 < own < 1.4
    assert forest_of_own > 0.5  # so that memory is seen while a forest grows
