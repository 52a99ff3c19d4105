"""Fits a cosmology to supernovae by emcee: the data and their inverse covariance lie once on each node.

    mpiexec -n 4 python jobs/likelihood.py
    mpiexec -n 4 python jobs/likelihood.py --data supernovae.npz --steps 5000 --output chain.npy

Rank 0 runs emcee, whose pool is all ranks. The function that they call is known by its name, and finds the data in a
variable of the module, so that no task carries them.

Your own data: --data takes a .npz file with "redshift" and "modulus", shape (n,), and "inverse", the inverse of the
covariance of the moduli, shape (n, n). Another model goes into `log_probability`, its parameters into NAMES and START.
With --check, rank 0 samples alone, and the job fails where the chain differs. Needs emcee. Set OMP_NUM_THREADS=1.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

NAMES, START = ("matter density", "absolute magnitude"), (0.4, -19.0)
data: dict[str, NDArray[Any]] = {}  # one copy per node, on every rank

comm = MPI.COMM_WORLD


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npz", help="the supernovae; without it some are made")
    parser.add_argument("--walkers", type=int, default=32, help="of emcee (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=500, help="of each walker (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE.npy", help="where to write the chain")
    parser.add_argument("--plot", metavar="FILE.png", help="where to draw the contours; needs matplotlib")
    parser.add_argument("--check", action="store_true", help="compare with the same on rank 0 alone")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    data.update(ms.share(call=lambda: dict(np.load(options.data)) if options.data else make_data()))
    with ms.Pool() as pool:
        if pool is not None:
            report(sample(options, pool), options)
            print(f"data: {ms.report().summary}")


def sample(options: argparse.Namespace, pool: ms.Pool | None) -> NDArray[Any]:
    """The chain, shape (steps, walkers, parameters), on rank 0, which alone needs emcee."""
    import emcee

    sampler = emcee.EnsembleSampler(options.walkers, len(START), log_probability, pool=pool)
    sampler.random_state = np.random.RandomState(1998).get_state()
    start = START + 0.01 * np.random.default_rng(1998).standard_normal((options.walkers, len(START)))
    sampler.run_mcmc(start, options.steps)
    return np.asarray(sampler.get_chain())


def log_probability(parameters: NDArray[Any]) -> float:
    """The logarithm of the likelihood in a flat universe, with a flat prior of the density between 0 and 1."""
    density, magnitude = parameters
    if not 0 < density < 1:
        return -np.inf
    residual = data["modulus"] - modulus(data["redshift"], density) - magnitude
    return float(-0.5 * residual @ (data["inverse"] @ residual))


def modulus(redshift: NDArray[Any], density: float) -> NDArray[Any]:
    """The distance modulus less a constant: 5 log10 of the luminosity distance over c / H0."""
    grid = np.linspace(0, redshift.max(), 300)
    inverse_rate = 1 / np.sqrt(density * (1 + grid) ** 3 + 1 - density)
    steps = np.diff(grid) * (inverse_rate[1:] + inverse_rate[:-1]) / 2
    distance = np.interp(redshift, grid, np.concatenate([[0], np.cumsum(steps)]))
    return np.asarray(5 * np.log10((1 + redshift) * distance))


def make_data(n: int = 1000) -> dict[str, NDArray[Any]]:
    """Supernovae of a universe with density 0.3, whose errors of calibration depend on the redshift."""
    rng = np.random.default_rng(1998)
    redshift = np.sort(rng.uniform(0.01, 1.5, n))
    covariance = 0.1**2 * np.eye(n) + 0.02**2 * np.exp(-np.abs(redshift[:, None] - redshift))
    noise = np.linalg.cholesky(covariance) @ rng.standard_normal(n)
    inverse = np.linalg.inv(covariance)
    return {"redshift": redshift, "modulus": modulus(redshift, 0.3) - 19.3 + noise, "inverse": inverse}


def report(chain: NDArray[Any], options: argparse.Namespace) -> None:
    """Prints the parameters, on rank 0."""
    for name, values in zip(NAMES, np.moveaxis(chain[options.steps // 2 :], -1, 0), strict=True):
        print(f"{name} {np.median(values):.3f} +- {values.std():.3f}")
    if options.output:
        np.save(options.output, chain)
    if options.plot:
        plot(chain[options.steps // 2 :].reshape(-1, 2), options.plot)
    if options.check:
        np.testing.assert_array_equal(chain, sample(options, None))
        print("likelihood: as on one rank")


def plot(samples: NDArray[Any], file: str) -> None:
    """Draws the samples, shape (n, 2), and the contours that hold 68 % and 95 % of the likelihood."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(layout="constrained")).subplots()
    x, y = (np.linspace(values.min(), values.max(), 40) for values in samples.T)
    log = np.array([[log_probability(np.array([density, magnitude])) for density in x] for magnitude in y])
    axes.plot(*samples.T, ",", color="tab:blue")
    axes.contour(x, y, log - log.max(), [-6.18 / 2, -2.30 / 2], colors="black", linestyles="solid")
    axes.set(xlabel=NAMES[0], ylabel=NAMES[1])
    figure.savefig(file, dpi=80)


if __name__ == "__main__":
    main()
