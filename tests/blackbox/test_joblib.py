"""The backend of joblib passes joblib's own tests."""

import re

from tests.blackbox.launch import PROGRAMS, run_ranks

PROGRAM = ["-m", f"{PROGRAMS}.joblib_backend"]

OF_PROCESSES = """
    multiprocessing loky back_compat interactively unpicklable initializer memmap
    error_capture timeout_fail abort_backend fastest_first
"""
"""Of joblib's tests, those that start processes, end those of the backend, or look for memory-mapped files."""


def test_joblibs_own_tests(tmp_path):
    chosen = ["-k", f"mpishare and not ({' or '.join(OF_PROCESSES.split())})"]
    ended = run_ranks(4, [*PROGRAM, str(tmp_path), *chosen], {"MPISHARE_NODES": "block:2"})
    assert re.search(r"^8\d passed, \d+ deselected", ended.stdout, re.MULTILINE), ended.stdout
