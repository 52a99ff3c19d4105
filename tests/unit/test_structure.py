"""The shape of the package: layers that import downwards, names that agree, an import that does nothing."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mpishare as ms
from mpishare import kernels
from mpishare.messages.wire import FIRST_TAG

PACKAGE = Path(ms.__file__).parent
README = (PACKAGE.parent / "README.md").read_text()

LAYERS = [
    {"_version", "callers", "costs", "errors", "dtypes", "spec", "parcels", "layout", "plan", "ringplan", "config"}
    | {"machine", "cgroups", "filesystems", "kernelfiles"},  # pure
    {"mpi", "abandoned", "meanwhile", "agreement", "board", "bridge", "ending"}
    | {"lookout", "watched", "topology"},  # MPI facts
    {"loans", "segments", "pull", "transfer", "compression", "letters", "streams", "messages"}
    | {"objects", "crates", "ring", "rows", "operations", "reduction"},  # mechanism
    {"sharing", "making", "collectives", "gathering", "scattering", "reducing", "exchange"}
    | {"files", "checkpoints", "report", "progress", "tasks", "kernels"},  # face
    {"__init__"},
    {"cli", "__main__"},  # programs
]
OPTIONAL = {"numba", "h5py", "pandas", "lz4", "matplotlib", "tqdm", "cloudpickle"}


def layer_of(module: str) -> int:
    """The number of the layer that `module`, named without the package, belongs to."""
    first = module.split(".")[0] or "__init__"
    return next(number for number, layer in enumerate(LAYERS) if first in layer)


def imports_of(file: Path) -> list[str]:
    """The modules that a file imports anywhere in it, by full name."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide their layer"
            assert node.module is not None
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file: Path) -> None:
    mine = layer_of(".".join(file.relative_to(PACKAGE).with_suffix("").parts))
    for name in imports_of(file):
        inner = name.removeprefix("mpishare").lstrip(".")
        known = any(inner.split(".")[0] in layer for layer in LAYERS)
        if name.startswith("mpishare.") and known:
            assert layer_of(inner) <= mine, name


def test_the_pure_layer_knows_nothing_of_mpi() -> None:
    for name in LAYERS[0]:
        for imported in imports_of(PACKAGE / f"{name}.py"):
            assert "mpi4py" not in imported
            assert imported != "mpishare.mpi"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_optional_packages_are_not_imported_with_the_module(file: Path) -> None:
    allowed = {"numba"} if file.parent.name == "kernels" else set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not {name.split(".")[0] for name in names} & OPTIONAL - allowed


def tags_of(file: Path) -> list[int]:
    """The numbers that a file gives to tags."""
    nodes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Assign)]
    named = [node.value for node in nodes if re.search(r"TAG\b", ast.unparse(node.targets[0]))]
    found = [one for value in named for one in (value.elts if isinstance(value, ast.Tuple) else [value])]
    return [one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, int)]


def test_no_message_is_taken_for_another() -> None:
    tags = sorted(tag for file in FILES for tag in tags_of(file))
    assert len(tags) == len(set(tags))
    assert tags[-1] == FIRST_TAG  # from which on messages of the caller's are numbered


def test_nothing_imports_the_kernels_but_their_user() -> None:
    for file in FILES:
        if file.parent.name != "kernels":
            assert not [name for name in imports_of(file) if name.startswith("mpishare.kernels")], file


def test_programs_use_the_public_face_only() -> None:
    jobs = (PACKAGE.parent / "jobs").glob("*.py")
    for file in [*jobs, *(PACKAGE / "cli").glob("*.py")]:
        for name in imports_of(file):
            is_public = name.startswith(("mpishare.cli", "mpishare.kernels"))
            assert is_public or not name.startswith("mpishare."), (file, name)
        for name in re.findall(r"\bms\.(\w+)", file.read_text()):
            assert name in ms.__all__, (file, name)


def test_every_public_name_exists_and_is_in_the_readme() -> None:
    assert ms.__all__ == sorted(ms.__all__)
    told = set(re.findall(r"^\| `(\w+)", README, re.MULTILINE))
    assert told == set(ms.__all__)
    assert all(hasattr(ms, name) for name in ms.__all__)
    assert all(f"`kernels.{name}(" in README for name in kernels.__all__)


def test_every_error_is_explained_in_the_readme() -> None:
    section = README.partition("## When something goes wrong")[2].partition("\n## ")[0]
    for name in ms.__all__:
        if name.endswith("Error") and name != "MpishareError":
            assert name in section, name


def public_calls() -> list[Callable[..., object]]:
    """The public functions."""
    found = [getattr(module, name) for module in (ms, kernels) for name in module.__all__]
    return [call for call in found if inspect.isfunction(call)]


@pytest.mark.parametrize("call", public_calls(), ids=lambda call: call.__name__)
def test_docstrings_have_their_sections(call: Callable[..., object]) -> None:
    text = inspect.getdoc(call) or ""
    parameters = inspect.signature(call).parameters
    assert "Collective:" in text
    assert "Example:" in text
    assert ("Args:" in text) == bool(parameters)
    for parameter in parameters:
        assert re.search(rf"^    {parameter}: ", text, re.MULTILINE), parameter
    assert ("comm" in parameters) == ("Over" in text or "over" in text)


def test_import_is_inert() -> None:
    code = (
        "import os, random, signal, sys, numpy as np\n"
        "def state():\n"
        "    handlers = [signal.getsignal(number) for number in signal.valid_signals()]\n"
        "    chance = random.getstate(), str(np.random.get_state())\n"
        "    return dict(os.environ), handlers, chance, os.listdir('/proc/self/fd')\n"
        "before = state()\n"
        "from mpishare import *\n"
        "import mpishare\n"
        "assert not {'mpi4py.MPI', 'numba'} & set(sys.modules)\n"
        "assert state() == before\n"
        "import inspect, pydoc\n"
        "pydoc.render_doc(mpishare)\n"
        "assert 'mpi4py.MPI' not in sys.modules\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
