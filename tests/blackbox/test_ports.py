"""Parts of others' codes, in jobs/ports: by mpishare they give the original's bits."""

import json

import pytest

from tests.blackbox.launch import run_code
from tests.originals import archive_of

PORTS = {
    "pysm_read_map": ["--nside", "64"],
    "pyuvsim_shared_mem_bcast": ["--mib", "2"],
    "taurex_opacity": ["--wavenumbers", "500"],
}

PYUVSIM = """
import sys
from types import ModuleType
sys.modules["pyuvsim"] = ModuleType("pyuvsim")  # whose own needs other packages
sys.modules["pyuvsim"].__path__ = [{!r}]
"""


@pytest.fixture(scope="module")
def figures():
    """What the programs print, by name."""
    options = ["--rounds", "1", "--json"]
    code = PYUVSIM.format(f"{archive_of('pyuvsim')}/pyuvsim") + "".join(
        f"import jobs.ports.{name}\nassert jobs.ports.{name}.main({[*args, *options]}) == 0\n"
        for name, args in PORTS.items()
    )
    results = [json.loads(line) for line in run_code(2, code).stdout.splitlines()]
    return dict(zip(PORTS, results, strict=True))


@pytest.mark.parametrize("name", PORTS)
def test_the_bits_are_the_same(name, figures):
    assert (figures[name]["ranks"], figures[name]["same"]) == (2, True)
