"""Parts of others' codes, in jobs/ports: by mpishare they give the original's bits."""

import ast
import json
from zipfile import ZipFile

import numpy as np
import pytest

from jobs.ports import redrock_templates
from tests.blackbox.launch import run_code
from tests.originals import archive_of

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

ORIGINALS = {
    "anuga_shared_bcast": "anuga",
    "elphmod_dispersion": "elphmod",
    "ipie_integrals": "ipie",
    "litebird_quaternions": "litebird_sim",
    "pysm_read_map": "PySM",
    "pyuvsim_shared_mem_bcast": "pyuvsim",
    "redrock_templates": "redrock",
    "taurex_opacity": "TauREx",
}

WHOLE = ["elphmod", "ipie"]  # imported as they are

MODULES = ["litebird_sim", "pyuvsim", "redrock"]  # whose __init__.py needs other packages

ARCHIVES = """
import sys
from types import ModuleType

sys.path += {whole}
for package, path in {modules}.items():
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = [path]
sys.modules["fitsio"] = ModuleType("fitsio")  # which redrock imports for nothing that is called here
sys.modules["fitsio"].FITS = None
for package in ("anuga", "anuga.parallel", "anuga.parallel.parallel_api"):  # which imports compiled modules
    sys.modules[package] = ModuleType(package)
exec({anuga!r}, sys.modules["anuga.parallel.parallel_api"].__dict__)
"""

IPIE = """
import sys
from types import ModuleType

sys.path.append({archive!r})
sys.modules["plum"] = ModuleType("plum")  # of functions that these tests do not call
sys.modules["plum"].dispatch = dispatch = lambda function: function
dispatch.abstract = dispatch
from jobs.ports.ipie_integrals import by_mpishare
import ipie.hamiltonians.utils
import mpishare as ms

if {has_port}:

    def integrals(filename, comm=None, verbose=False):
        comm = comm or ms.SELF
        return by_mpishare(comm.bcast(filename), comm)  # each rank writes a file of its own

    ipie.hamiltonians.utils.get_generic_integrals = integrals
import ipie.systems.tests.test_generic as tests

passed = [name for name in dir(tests) if name.startswith("test_")]
for name in passed:
    getattr(tests, name)()
print(*passed)
"""

REDROCK = """
import sys
import unittest
from types import ModuleType

sys.path.append({archive!r})
sys.modules["fitsio"] = ModuleType("fitsio")
sys.modules["fitsio"].FITS = None
import mpishare as ms
import redrock.templates

if {has_port}:
    read = redrock.templates.Template
    redrock.templates.Template = lambda *args, **options: ms.share(call=lambda: read(*args, **options))
from redrock.test.test_templates import TestTemplates

result = unittest.TextTestRunner(sys.stderr).run(unittest.defaultTestLoader.loadTestsFromTestCase(TestTemplates))
print("their tests:", result.testsRun, len(result.errors + result.failures + result.skipped))
"""


@pytest.fixture(scope="module")
def figures():
    """What the programs print, by name."""
    options = ["--rounds", "1", "--json"]
    modules = {package: f"{archive_of(package)}/{package}" for package in MODULES}
    whole = [str(archive_of(package)) for package in WHOLE]
    code = ARCHIVES.format(whole=whole, modules=modules, anuga=function_of_anuga()) + "".join(
        f"import jobs.ports.{name}\nassert jobs.ports.{name}.main({[*args, *options]}) == 0\n"
        for name, args in PORTS.items()
    )
    results = [json.loads(line) for line in run_code(2, code).stdout.splitlines()]
    return dict(zip(PORTS, results, strict=True))


def function_of_anuga():
    """The text of its function, with what it needs of the module."""
    text = ZipFile(archive_of("anuga")).read("anuga/parallel/parallel_api.py").decode()
    [function] = [node for node in ast.parse(text).body if getattr(node, "name", "") == "_shared_bcast_ndarray"]
    return f"import numpy as num\n{ast.unparse(function)}"


@pytest.mark.parametrize("name", PORTS)
def test_the_bits_are_the_same(name, figures):
    assert (figures[name]["ranks"], figures[name]["same"]) == (2, True)


@pytest.mark.parametrize("name", PORTS)
def test_the_original_was_among_the_ways(name, figures):
    assert figures[name]["ways"][0]["way"] == ORIGINALS[name]


@pytest.mark.parametrize("has_port", [False, True], ids=["original", "port"])
def test_their_own_tests_of_ipie(has_port):
    code = IPIE.format(archive=str(archive_of("ipie")), has_port=has_port)
    lines = run_code(2, code).stdout.splitlines()
    assert lines == ["test_complex test_read test_real test_shmem"] * 2


@pytest.mark.parametrize("has_port", [False, True], ids=["original", "port"])
def test_their_own_tests_of_redrock(has_port, tmp_path):
    for number in range(3):
        redrock_templates.write(tmp_path / f"rrtemplate-{number}.fits", np.ones((3, 8000)))
    code = REDROCK.format(archive=str(archive_of("redrock")), has_port=has_port)
    ended = run_code(2, code, {"RR_TEMPLATE_DIR": str(tmp_path)})
    assert [line for line in ended.stdout.splitlines() if line.startswith("their tests:")] == ["their tests: 6 0"] * 2
