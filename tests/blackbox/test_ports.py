"""Parts of others' codes, in jobs/ports: by mpishare they give the original's bits, and its own tests pass."""

import json
import platform
import sys

import pytest

from tests.blackbox.launch import PROGRAMS, run_ranks

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.version_info < (3, 11),
    reason="the compiled modules of the originals are for x86-64, and litebird_sim is for Python 3.11 or newer",
)
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
OWN_TESTS = {"anuga": 1, "ipie": 4, "litebird_sim": 6, "pyuvsim": 2, "redrock": 6}
"""How many tests of what is ported pass with the original. The archives of the others hold none."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the program prints: the figures of each port, by name, and the tests that pass, by package."""
    folder = tmp_path_factory.mktemp("originals")
    (folder / ".config" / "litebird_imo").mkdir(parents=True)
    (folder / ".config" / "litebird_imo" / "imo.toml").touch()
    # Compiling by numba would take ten seconds of each rank.
    settings = {"HOME": str(folder), "RR_TEMPLATE_DIR": str(folder), "NUMBA_DISABLE_JIT": "1"}
    program = ["-m", f"{PROGRAMS}.ports", str(folder)]
    run_ranks(1, program, settings)
    *figures, tests = map(json.loads, run_ranks(2, program, settings).stdout.splitlines())
    return dict(zip(ORIGINALS, figures, strict=True)), tests


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_bits_are_the_same_as_of_the_original(name, results):
    figures = results[0][name]
    assert (figures["ranks"], figures["same"], figures["ways"][0]["way"]) == (2, True, ORIGINALS[name])


@pytest.mark.parametrize("package", OWN_TESTS)
def test_their_own_tests(package, results):
    assert len(results[1][package]) == OWN_TESTS[package]
