"""config: one place reads the environment, and refuses what it does not understand."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mpishare
from mpishare.config import Config
from mpishare.errors import ArgumentError

PACKAGE = Path(mpishare.__file__).parent


def test_nothing_set() -> None:
    assert Config.read({}) == Config() == Config.read({"MPISHARE_NODES": "", "MPISHARE_SECOND_MAP": ""})


def test_all_set() -> None:
    environ = {
        "MPISHARE_BACKEND": "window",
        "MPISHARE_NODES": "block:2",
        "MPISHARE_SECOND_MAP": "0",
        "MPISHARE_DIR": "/scratch",
        "MPISHARE_CHECK": "1",
        "MPISHARE_TIMEOUT": "2.5",
        "MPISHARE_RECYCLE": "1.5G",
        "MPISHARE_CHUNK": "256k",
        "TMPDIR": "/local",
        "OMPI_MCA_osc_sm_backing_directory": "/tmp",
    }
    config = Config.read(environ)
    assert (config.backend, config.nodes, config.second_map, config.window_dir) == ("window", "block:2", False, "/tmp")
    assert (config.directory, config.folder, config.check, config.timeout_s) == ("/scratch", "/scratch", True, 2.5)
    assert (config.recycle, config.chunk_bytes) == ("1.5G", 256 << 10)
    assert Config.read({"TMPDIR": "/local"}).folder == "/local"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("", 50), ("0", 0), ("100", 100), ("2k", 2048), ("1.5M", 3 << 19), ("10%", 100), ("1T", 1 << 40)],
)
def test_how_much_is_kept(text: str, nbytes: int) -> None:
    assert Config.read({"MPISHARE_RECYCLE": text}).recycle_bytes(1000) == nbytes


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf", "91%", "%", "3X", "G"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ArgumentError, match="MPISHARE_RECYCLE"):
        Config.read({"MPISHARE_RECYCLE": text})
    with pytest.raises(ArgumentError, match="MPISHARE_CHUNK"):
        Config.read({"MPISHARE_CHUNK": text})


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_bad_timeouts(text: str) -> None:
    with pytest.raises(ArgumentError, match="MPISHARE_TIMEOUT"):
        Config.read({"MPISHARE_TIMEOUT": text})
    assert Config.read_timeout({"MPISHARE_TIMEOUT": text}) is None


def test_folders_may_differ_between_nodes() -> None:
    assert Config.read({"MPISHARE_DIR": "/a"}).common == Config.read({"MPISHARE_DIR": "/b"}).common


@pytest.mark.parametrize(
    ("environ", "launched"),
    [
        ({}, 1),
        ({"SLURM_STEP_NUM_TASKS": "6"}, 6),
        ({"OMPI_COMM_WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "3"}, 1),
        ({"PMI_SIZE": "4"}, 4),
        ({"PMI_SIZE": "many"}, 1),
    ],
)
def test_how_many_were_launched(environ: dict[str, str], launched: int) -> None:
    assert Config.read(environ).launched == launched


def test_bad_switch() -> None:
    with pytest.raises(ArgumentError, match="MPISHARE_SECOND_MAP='maybe'"):
        Config.read({"MPISHARE_SECOND_MAP": "maybe"})


def test_no_other_module_of_the_library_reads_the_environment() -> None:
    for file in PACKAGE.rglob("*.py"):
        names = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
        if file.name != "config.py" and file.parent.name != "cli":
            assert not names & {"environ", "getenv"}, file
