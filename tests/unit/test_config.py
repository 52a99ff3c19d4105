"""config: each variable sets one attribute, and values that are not allowed are refused."""

import subprocess
import sys
from dataclasses import asdict

import pytest

import mpishare as ms
from mpishare.config import Config, parse_bytes, unknown_settings
from mpishare.errors import ArgumentError
from tests.blackbox.launch import ROOT, environment


def test_nothing_set():
    assert Config.read({}) == Config() == Config.read({"MPISHARE_NODES": "", "MPISHARE_EXCEPTHOOK": ""})


VARIABLES = [
    ("MPISHARE_BACKEND", "window", "backend", "window"),
    ("MPISHARE_NODES", "block:2", "nodes", "block:2"),
    ("MPISHARE_EXCEPTHOOK", "0", "excepthook", False),
    ("MPISHARE_DIR", "/scratch", "directory", "/scratch"),
    ("MPISHARE_DIR", "", "directory", ""),
    ("MPISHARE_CHECK", "1", "check", True),
    ("MPISHARE_TIMEOUT", "2.5", "timeout_s", 2.5),
    ("MPISHARE_RECYCLE", "1.5G", "recycle", "1.5G"),
    ("MPISHARE_CHUNK", "256k", "chunk_bytes", 256 << 10),
    ("MPISHARE_SINGLETONS", "1", "singletons", True),
    ("MPISHARE_COLUMNS", "120", "columns", 120),
    ("TMPDIR", "/local", "temporary", "/local"),
    ("OMPI_MCA_osc_sm_backing_directory", "/tmp", "window_dir", "/tmp"),
    ("PMI_SIZE", "4", "launched", 4),
    ("PMI_SIZE", "many", "launched", 1),
]


@pytest.mark.parametrize(("variable", "text", "attribute", "value"), VARIABLES)
def test_each_variable_sets_one_attribute(variable, text, attribute, value):
    assert asdict(Config.read({variable: text})) == {**asdict(Config()), attribute: value}


def test_memory_kept_for_arrays_to_come():
    for text, nbytes in {"": 50, "0": 0, "100": 100, "2k": 2048, "10%": 100, "90%": 900, "1T": 1 << 40}.items():
        assert Config.read({"MPISHARE_RECYCLE": text}).recycle_bytes(1000) == nbytes


def test_sizes():
    for text, nbytes in {"0": 0, "512": 512, "1.5g": 3 << 29, "8 KiB": 8192, "2TB": 2 << 40, " 3m ": 3 << 20}.items():
        assert parse_bytes(text) == nbytes
    for text in ("", "G", "-1G", "1P", "4 apples", "nan", "1e3"):
        with pytest.raises(ValueError, match="is not a size"):
            parse_bytes(text)


BAD = {
    "MPISHARE_RECYCLE": ["much", "-1", "nan", "91%", "%"],
    "MPISHARE_CHUNK": ["10%", "4095", "2G"],
    "MPISHARE_TIMEOUT": ["soon", "0", "inf"],
    "MPISHARE_EXCEPTHOOK": ["maybe"],
    "MPISHARE_COLUMNS": ["wide", "0"],
}


@pytest.mark.parametrize(("variable", "text"), [(name, text) for name, values in BAD.items() for text in values])
def test_values_that_are_not_allowed(variable, text):
    with pytest.raises(ArgumentError, match=f"{variable}='{text}'"):
        Config.read({variable: text})
    for attribute in ("timeout_s", "columns"):
        assert Config.read_one(attribute, {variable: text}) is None


CONFIGURE = """
import sys, mpishare as ms
ms.configure(recycle=0, excepthook=False, timeout=2.5, dir=None, backend="memmap")
print(ms.info(comm=ms.SELF).settings, sys.excepthook is sys.__excepthook__)
try: ms.configure(recycle=0)
except ms.ArgumentError as error: print(error)
"""


def test_settings_by_call():
    """They hold unless the environment sets them, and come before the first collective."""
    line, environ = [sys.executable, "-c", CONFIGURE], environment({"MPISHARE_TIMEOUT": "9"})
    ended = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    settings, refusal = ended.stdout.splitlines()
    expected = {"MPISHARE_RECYCLE=0", "MPISHARE_TIMEOUT=9.0", "MPISHARE_BACKEND=memmap", "MPISHARE_DIR=", "True"}
    assert expected < {*settings.split()}
    assert refusal.startswith("configure() comes too late: a communicator has been used")


def test_calls_that_set_nothing():
    for name, value, text in (
        ("recycel", 0, "^recycel is no setting; did you mean recycle?"),
        ("tmpdir", "/tmp", "^tmpdir is no setting"),
        ("recycle", "much", "^MPISHARE_RECYCLE='much' is not understood. Use bytes with"),
    ):
        with pytest.raises(ArgumentError, match=text):
            ms.configure(chunk="1M", **{name: value})
        assert Config.read().chunk_bytes is None


def test_unknown_settings():
    environ = {"MPISHARE_TIMEUOT": "3", "MPISHARE_ZZZZZZZZ": "1", "MPISHARE_VENV": "v", "MPISHARE_DIR": "/a"}
    texts = ["MPISHARE_TIMEUOT is no setting; did you mean MPISHARE_TIMEOUT?", "MPISHARE_ZZZZZZZZ is no setting"]
    assert unknown_settings(environ) == texts
