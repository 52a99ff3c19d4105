"""Mean, spread and percentiles of an ensemble, a netCDF file a member, from one copy of all members on each node.

    mpiexec -n 4 python jobs/ensemble.py runs/member-*.nc --variable t2m --output statistics.nc
    mpiexec -n 4 python jobs/ensemble.py --make build/ensemble --output build/statistics.nc

The ranks read the files by xarray, each rank some. Then each rank has all members, without a copy of its own, and
computes the statistics of its part of the grid, which is cut along the first dimension.

Your own data: the files, and a variable that has the same coordinates in all. Other statistics go into `statistics`.
With --check, rank 0 computes the whole grid alone, and the job fails where a bit differs. Needs xarray and netCDF4.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

NAMES = "mean", "deviation", "lowest_tenth", "median", "highest_tenth"

comm = MPI.COMM_WORLD


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="the members")
    parser.add_argument("--variable", default="temperature", help="which one (default: %(default)s)")
    parser.add_argument("--make", metavar="FOLDER", help="without files: where to write 20 made members first")
    parser.add_argument("--output", metavar="FILE.nc", help="where to write the statistics")
    parser.add_argument("--plot", metavar="FILE.png", help="where to draw the spread; needs matplotlib")
    parser.add_argument("--check", action="store_true", help="compare with the same on rank 0 alone")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    files, first = ms.share(call=lambda: look(options))
    own = files[ms.partition(len(files))]
    rows = np.empty((len(own), *first.shape), first.dtype)
    for row, file in zip(rows, own, strict=True):
        row[:] = read(file, options.variable)
    members = ms.allgather(rows)  # shape (members, ...): one copy per node
    result = ms.gather(statistics(members[:, ms.partition(first.shape[0])]))  # each rank's part of the grid
    if result is None:  # not on rank 0
        return
    table = xr.Dataset({name: (first.dims, result[:, i]) for i, name in enumerate(NAMES)}, first.coords, first.attrs)
    print(f"{len(files)} members of {dict(first.sizes)}, {members.nbytes:,} bytes on each node, {comm.size} ranks")
    for name in NAMES:
        print(f"  {name:13} {float(table[name].mean()):.2f} {first.attrs.get('units', '')} on average")
    if options.output:
        table.to_netcdf(options.output)
    if options.check:
        np.testing.assert_array_equal(result, statistics(members))
        print("ensemble: as on one rank")
    if options.plot:
        table["deviation"].plot().figure.savefig(options.plot, dpi=80)
    print(f"members: {ms.report().summary}")


def look(options: argparse.Namespace) -> tuple[list[str], Any]:
    """The names of the files, and the variable of the first."""
    if not options.files and not options.make:
        raise ValueError("ensemble: name the files, or a folder for --make")
    files = options.files or make_members(Path(options.make), options.variable)
    return files, read(files[0], options.variable)


def read(file: str, variable: str) -> Any:
    """The variable of a member, as a DataArray in memory."""
    with xr.open_dataset(file) as member:
        return member[variable].load()


def statistics(members: NDArray[Any]) -> NDArray[Any]:
    """The statistics named in NAMES, shape (n, 5, ...), of shape (members, n, ...)."""
    return np.stack([members.mean(0), members.std(0), *np.percentile(members, [10, 50, 90], axis=0)], axis=1)


def make_members(folder: Path, variable: str) -> list[str]:
    """Writes fields of temperatures: a wave at another place in each, with noise."""
    coords = {"latitude": np.linspace(-90, 90, 61), "longitude": np.arange(0.0, 360.0, 3)}
    latitude, longitude = np.deg2rad(coords["latitude"]), np.deg2rad(coords["longitude"])
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(folder / f"member-{number:02}.nc") for number in range(20)]
    for number, file in enumerate(files):
        rng = np.random.default_rng(number)
        wave = 6 * np.sin(3 * longitude + rng.normal(0, 0.5)) * np.sin(2 * latitude)[:, None] ** 2
        field = 273 + 30 * np.cos(latitude)[:, None] + wave + 0.3 * rng.standard_normal(wave.shape)
        xr.Dataset({variable: (list(coords), field, {"units": "K"})}, coords).to_netcdf(file)
    return files


if __name__ == "__main__":
    main()
