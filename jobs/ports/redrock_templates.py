"""Ports the templates of redrock: spectra that each rank fits to its galaxies, from FITS files, once on each node.

    mpiexec -n 4 python -m jobs.ports.redrock_templates --templates 40

redrock (load_dist_templates of redrock/templates.py) reads all files on rank 0 and sends the objects to every rank by a
pickle, so that each rank has a copy. The files are made, in redrock's form. Needs astropy. Where redrock is installed,
its own function is measured as well, without the wavelengths that it would bring the templates to.
"""

import io
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from astropy.io import fits
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

try:
    from redrock.templates import load_dist_templates
except ImportError:
    load_dist_templates = None
from jobs.ports.figures import Way, arguments, compare

BASES = 10

world = MPI.COMM_WORLD


class Template(NamedTuple):
    """Basis vectors of one type of object."""

    subtype: str
    redshifts: NDArray[Any]
    wave: NDArray[Any]
    flux: NDArray[Any]


def read(path: Path) -> Template:
    """A template from its file."""
    with fits.open(path, memmap=False) as file:
        vectors = file["BASIS_VECTORS"]
        first, step = vectors.header["CRVAL1"], vectors.header["CDELT1"]
        wave = first + step * np.arange(vectors.header["NAXIS1"])
        redshifts = file["REDSHIFTS"].data.astype(float)
        flux = vectors.data.astype(float)
        del vectors.data  # which cycles of references would keep
    return Template(vectors.header["RRSUBTYP"], redshifts, wave, flux)


def by_hand(paths: Sequence[Path]) -> list[Template]:
    """All templates, each in a copy of this rank."""
    templates = None
    if world.rank == 0:
        templates = [read(path) for path in paths]
    return list(world.bcast(templates))


def by_mpishare(paths: Sequence[Path]) -> list[Template]:
    """All templates, around arrays that are once on each node."""
    return [ms.share(call=partial(read, path)) for path in paths]


def arrays_of(templates: Sequence[Any]) -> tuple[NDArray[Any], ...]:
    """The arrays of these and of redrock's own."""
    return tuple(array for template in templates for array in (template.wave, template.flux))


def by_redrock(paths: Sequence[Path]) -> dict[str, Way]:
    """The way of redrock itself, if it is installed."""
    if load_dist_templates is None:
        return {}

    def original() -> Any:
        with redirect_stdout(io.StringIO()):
            spread = load_dist_templates({}, templates=[str(path) for path in paths], comm=world)
        return arrays_of([part.template for part in spread])

    return {"redrock": Way([], original)}


def main(args: Sequence[str] | None = None) -> int:
    """Compares both; returns 0 when they give the same bits."""
    parser = arguments(__doc__)
    parser.add_argument("--templates", type=int, default=40, help="how many are made (default: %(default)s)")
    parser.add_argument("--wavelengths", type=int, default=50_000, help="of each (default: %(default)s)")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as folder:
        paths = world.bcast([Path(folder, f"{number:03}.fits") for number in range(options.templates)])
        if world.rank == 0:
            random = np.random.default_rng(2020)
            for path in paths:
                write(path, random.standard_normal((BASES, options.wavelengths)))
        world.Barrier()
        ways = {
            **by_redrock(paths),
            "by hand": Way([by_hand], lambda: arrays_of(by_hand(paths))),
            "mpishare": Way([by_mpishare], lambda: arrays_of(by_mpishare(paths))),
        }
        nbytes = 8 * options.templates * options.wavelengths * (BASES + 1)
        status = compare("redrock, templates", nbytes, ways, options)
        world.Barrier()
    return status


def write(path: Path, flux: NDArray[Any]) -> None:
    """Makes the file of a template, whose subtype is the name of the file."""
    vectors = fits.ImageHDU(flux, name="BASIS_VECTORS")
    words = {"RRTYPE": "QSO", "RRSUBTYP": path.stem, "RRMETHOD": "PCA", "RRIGM": "None", "VERSION": "1.0"}
    vectors.header.update({"CRVAL1": 500.0, "CDELT1": 1.0, **words})
    redshifts = fits.ImageHDU(np.linspace(0.05, 6, 100), name="REDSHIFTS")
    fits.HDUList([fits.PrimaryHDU(), vectors, redshifts]).writeto(path)


if __name__ == "__main__":
    raise SystemExit(main())
