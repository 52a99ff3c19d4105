"""Libraries that take a pool, with ours in the place of their own.

The code is that of the libraries' own documentation.
"""

import warnings
from concurrent.futures import Executor, as_completed

import adaptive
import dynesty
import dynesty.pool
import emcee
import lmfit
import numpy as np
import platypus
import pytest
from scipy.optimize import brute, differential_evolution

import mpishare as ms


def line(params, x, y):
    """Residuals of a line."""
    return params["slope"] * x + params["offset"] - y


def fit(**options):
    """A fit by lmfit."""
    params = lmfit.Parameters()
    params.add("slope", value=2.0, min=0, max=4)
    params.add("offset", value=1.0, min=0, max=2)
    x = np.linspace(0, 1, 9)
    return lmfit.minimize(line, params, args=(x, 2 * x + 1.1), **options)


def by_lmfit_emcee(pool):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of short chains
        chains = [
            fit(method="emcee", steps=9, nwalkers=10, seed=1, progress=False, is_weighted=False, workers=workers).chain
            for workers in (pool, 1)
        ]
    return np.array_equal(*chains)


def by_lmfit_brute(pool):
    results = [fit(method="brute", Ns=8, workers=workers) for workers in (pool.map, 1)]
    return np.array_equal(*(result.brute_Jout for result in results))


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


def by_platypus(pool):
    algorithm = platypus.NSGAII(platypus.DTLZ2(), population_size=20, evaluator=platypus.PoolEvaluator(pool))
    algorithm.run(60)
    futures = platypus.NSGAII(platypus.DTLZ2(), population_size=20, evaluator=platypus.ApplyEvaluator(pool.apply_async))
    futures.run(60)
    return len(algorithm.result) == len(futures.result) == 20


def peak(x):
    return x + 0.1**2 / (0.1**2 + x**2)


def by_adaptive(pool):
    learner = adaptive.Learner1D(peak, (-1, 1))
    adaptive.BlockingRunner(learner, npoints_goal=40, executor=pool, ntasks=pool.num_workers, shutdown_executor=False)
    return all(learner.data[x] == peak(x) for x in learner.data) and learner.npoints >= 40


def log_likelihood(x, width):
    return -0.5 * float(np.sum((x / width) ** 2))


def prior_transform(u):
    return 4 * u - 2


def by_dynesty(pool):
    """The functions come once, by the initializer of dynesty's own pool."""
    functions = dynesty.pool
    pool.initialize(functions.initializer, (log_likelihood, prior_transform, (0.5,), {}, (), {}))
    sampler = dynesty.NestedSampler(
        functions.loglike_cache,
        functions.prior_transform_cache,
        2,
        nlive=50,
        pool=pool,
        rstate=np.random.default_rng(1),
    )
    sampler.run_nested(dlogz=5, print_progress=False)
    return abs(sampler.results.logz[-1] - np.log(2 * np.pi * 0.25 / 16)) < 2


def by_futures(pool):
    assert isinstance(pool, Executor)
    futures = [pool.submit(pow, number, 2) for number in range(20)]
    return {future.result() for future in as_completed(futures)} == {number**2 for number in range(20)}


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


USERS = [by_lmfit_emcee, by_lmfit_brute, by_scipy, by_platypus, by_adaptive, by_dynesty, by_futures, by_emcee]

if __name__ == "__main__":
    with ms.Pool() as pool:
        if pool is not None:
            for user in USERS:
                assert user(pool), user
            print("all are right")
