"""Runs the ports of jobs/ports, then the originals' own tests of what is ported, with the port.

Rank 0 prints the lines of the ports, and last, as JSON, the names of the tests that pass on all ranks: by package.
argv[1] is the folder for files, and what HOME names. On one rank only the program of anuga's own test runs, and leaves
there the result that several ranks must give as well.
"""

import importlib
import json
import os
import runpy
import sys
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest import TestResult
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.originals import original

comm = MPI.COMM_WORLD
folder = Path(sys.argv[1])
PACKAGES = ["anuga", "ducc0", "elphmod", "ipie", "litebird_sim", "pymetis", "redrock"]
"""Those of build/originals that are imported as they are."""
NOT_CALLED = {
    *("deprecated", "fitsio", "jinja2", "libinsdb", "markdown", "markdown_katex", "meshpy", "plum", "pyproj"),
    *("pyradiosky", "tomlkit"),
}
"""Packages that the originals import for what is not called here. Mocks stand for those that are not installed."""
PORTS = {
    "anuga_shared_bcast": ["--triangles", "20000"],
    "elphmod_dispersion": ["--points", "40", "--bands", "4"],
    "ipie_integrals": ["--orbitals", "20"],
    "litebird_quaternions": ["--days", "1"],
    "pysm_read_map": ["--nside", "64"],
    "pyuvsim_shared_mem_bcast": ["--mib", "2"],
    "redrock_templates": ["--templates", "3", "--wavelengths", "1000"],
    "taurex_opacity": ["--wavenumbers", "500"],
}


class Mocks(MetaPathFinder, Loader):
    """Finds the packages of NOT_CALLED, last of all."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in NOT_CALLED else None

    def create_module(self, spec):
        return MagicMock()

    def exec_module(self, module):
        pass


sys.path += [str(original(package)) for package in PACKAGES]
sys.meta_path.append(Mocks())
sys.modules["pyuvsim"] = ModuleType("pyuvsim")  # whose __init__.py imports much that is not called here
sys.modules["pyuvsim"].__path__ = [str(original("pyuvsim") / "src" / "pyuvsim")]


class Passed:
    """A plugin of pytest: the names of the tests that pass. It prints the others."""

    def __init__(self):
        self.names = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.names.append(report.nodeid.rpartition("::")[2])
        elif not report.passed:
            print(report.nodeid, report.longreprtext, file=sys.stderr)


def passed(file, *options):
    """The tests of a file that pass on all ranks. It is imported anew, and so takes the function that is there now."""
    for name in [name for name in sys.modules if name.rpartition(".")[2] == file.stem]:
        del sys.modules[name]
    plugin, config = Passed(), ["-c", os.devnull, f"--rootdir={folder}", f"--basetemp={folder}/{comm.rank}"]
    alone = ["--noconftest", "--import-mode=importlib", "-p", "no:terminal", "-p", "no:zarr", "-p", "no:cacheprovider"]
    pytest.main([*config, *alone, *options, str(file)], plugins=[plugin])
    names = comm.allgather(plugin.names)
    return sorted(set.intersection(*map(set, names)))


@contextmanager
def replaced(place, name, port, **options):
    """Puts the port where the original has its function, and fails where nothing has called it."""
    with patch.object(place, name, side_effect=port, **options) as called:
        yield
    assert called.called, name


def of_ipie():
    import ipie.hamiltonians.utils as utils

    from jobs.ports.ipie_integrals import by_mpishare

    def integrals(filename, comm=None, verbose=False):
        own = comm or ms.SELF
        return by_mpishare(own.bcast(filename), own)  # each rank writes a file of its own

    tests = original("ipie") / "ipie" / "systems" / "tests" / "test_generic.py"
    with replaced(utils, "get_generic_integrals", integrals):
        return passed(tests)


def of_redrock():
    import redrock.templates as templates

    from jobs.ports import redrock_templates

    if comm.rank == 0:
        for number in range(3):
            redrock_templates.write(folder / f"rrtemplate-{number}.fits", np.ones((3, 8000)))
    comm.Barrier()
    tests = original("redrock") / "redrock" / "test" / "test_templates.py"
    read = templates.Template
    with replaced(templates, "Template", lambda *args, **options: ms.share(call=lambda: read(*args, **options))):
        return passed(tests)


def of_pyuvsim():
    from pyuvsim import mpi

    from jobs.ports.pyuvsim_shared_mem_bcast import by_mpishare

    pytest.pyuvsim_can_parallel = True  # type: ignore[attr-defined]  # as its conftest.py says
    mpi.start_mpi(block_nonroot_stdout=False)
    tests = original("pyuvsim") / "tests" / "test_mpi.py"
    with replaced(mpi, "shared_mem_bcast", by_mpishare):
        return passed(tests, "-k", "shared")


def of_litebird_sim():
    from litebird_sim.shared_memory import SharedMemoryManager

    tests = original("litebird_sim") / "test" / "test_shared_memory_pointings.py"
    with replaced(SharedMemoryManager, "alloc_shared_comm", alloc_shared_comm, autospec=True):
        return passed(tests)


class Window:
    """What litebird_sim calls of a window."""

    def __init__(self, comm):
        self.comm = comm

    def Fence(self):  # noqa: N802
        ms.fence(comm=self.comm)

    def Free(self):  # noqa: N802
        pass


def alloc_shared_comm(manager, size, dtype, comm, comm_root=0):
    """The method of SharedMemoryManager, with memory by mpishare."""
    window = Window(comm)
    manager.list_windows.setdefault(comm.handle, []).append(window)
    return ms.zeros(size, dtype, comm=comm), window


def run_anuga():
    """Runs the program of anuga's test in the folder."""
    import anuga.parallel

    os.chdir(folder)
    with patch.object(anuga.parallel, "finalize", lambda: None):
        runpy.run_path(str(original("anuga") / "anuga" / "parallel" / "tests" / "run_parallel_collaborative_domain.py"))
    comm.Barrier()


def of_anuga():
    import anuga.parallel.parallel_api as api
    from anuga.parallel.tests.test_parallel_collaborative_domain import Test_parallel_collaborative_domain as Compared

    from jobs.ports.anuga_shared_bcast import by_mpishare

    compared = "test_that_sequential_and_parallel_outputs_are_identical"
    with replaced(api, "_shared_bcast_ndarray", lambda array, comm, node_comm: (by_mpishare(array), None)):
        run_anuga()
    outcome = TestResult()
    if comm.rank == 0:
        # setUp would start both programs, and tearDown remove what they have written.
        with patch.multiple(Compared, setUp=MagicMock(), tearDown=MagicMock()):
            Compared(compared).run(outcome)
    return [compared] if outcome.wasSuccessful() else []


if comm.size == 1:
    run_anuga()
else:
    for port, options in PORTS.items():
        assert importlib.import_module(f"jobs.ports.{port}").main([*options, "--rounds", "1", "--json"]) == 0
    suites = [of_anuga, of_ipie, of_litebird_sim, of_pyuvsim, of_redrock]
    outcomes = {suite.__name__.removeprefix("of_"): suite() for suite in suites}
    if comm.rank == 0:
        print(json.dumps(outcomes))
