"""Parts of others' codes, in jobs/ports: by mpishare they give the original's bits, in fewer lines than by hand."""

import json

import pytest

from tests.blackbox.launch import ROOT, run_code
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
def test_the_bits_are_the_same_and_the_lines_are_those_of_the_readme(name, figures):
    assert (figures[name]["ranks"], figures[name]["same"]) == (2, True)
    _original, by_hand, by_mpishare = (way["lines"] for way in figures[name]["ways"])
    readme = (ROOT / "jobs" / "ports" / "README.md").read_text()
    assert f"| `{name}.py` | {by_hand} to {by_mpishare} |" in readme


def test_each_port_is_tested_and_short():
    programs = {file.stem: file for file in (ROOT / "jobs" / "ports").glob("*.py") if file.stem != "figures"}
    assert programs.keys() == PORTS.keys()
    assert all(len(file.read_text().splitlines()) < 100 for file in programs.values())
