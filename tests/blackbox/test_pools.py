"""Libraries that take a pool run on one of ours, unchanged: SciPy and emcee."""

from tests.blackbox.launch import run_ranks


def test_libraries_that_take_a_pool():
    ended = run_ranks(2, ["-m", "tests.blackbox.programs.pool_users"])
    assert ended.stdout.endswith("all are right\n"), ended.stdout
