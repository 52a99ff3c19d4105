"""Libraries that take a pool, with ours in the place of their own.

The code is that of the libraries' own documentation.
"""

import emcee
import numpy as np
import pytest
from scipy.optimize import brute, differential_evolution

import mpishare as ms


class Bowl:
    """An objective that holds the pool, which is sent with it."""

    def __init__(self, pool):
        self.pool = pool

    def __call__(self, x):
        return float(np.sum((x - 0.5) ** 2))


def by_scipy(pool):
    grid = brute(Bowl(pool), [(0, 1), (0, 1)], Ns=5, finish=None, workers=pool.map)
    options = {"maxiter": 3, "seed": 1, "polish": False, "updating": "deferred"}
    results = [differential_evolution(Bowl(pool), [(0, 1)] * 2, workers=w, **options).x for w in (pool.map, 1)]
    return grid.tolist() == [0.5, 0.5] and np.array_equal(*results)


LEFT_OUT = [
    "TestNamedParameters and (compute_log_prob or run_mcmc)",
    "test_deal_with_scalar_likes",
    "autocorr",
    "backends",
    "HDF",
]
"""emcee's tests whose functions no pool can send, as they are methods of what holds pytest's output; tests without
samplers; and those that look at files."""


def by_emcee(pool):
    """Its unit tests, with a pool forced on each sampler."""
    init = emcee.EnsembleSampler.__init__

    def init_with_pool(self, *args, **kwargs):
        init(self, *args, **{"pool": pool, **kwargs})

    emcee.EnsembleSampler.__init__ = init_with_pool
    left_out = " or ".join(f"({name})" for name in LEFT_OUT)
    options = ["-q", "--color=no", "-p", "no:cacheprovider", "-W", "ignore", "-k", f"not ({left_out})"]
    return pytest.main([*options, "--pyargs", "emcee.tests.unit"]) == 0


USERS = [by_scipy, by_emcee]

if __name__ == "__main__":
    with ms.Pool() as pool:
        if pool is not None:
            for user in USERS:
                assert user(pool), user
            print("all are right")
